"""Compares runs with each other and with the published results: `--mode=report`.

It knows the files of run directories and of populations, the suites' reference scores and the
published numbers in `data/`, never TensorFlow. Run directories, finished or not, flow in through
`page.write_report`; a self-contained `report.html` and a file for each figure, film and table come
out. Each section of the page is a module, such as `gradients`: table, figures, numbers and words.
"""
