// Stands in for the parts of Abseil's `absl/log` that DeepMind Lab uses, where Abseil is older than
// they are. What is fatal ends the process after its line on standard error: `Q` quietly, with 1.
#ifndef LAB_BUILD_ABSL_LOG_CHECK_H_
#define LAB_BUILD_ABSL_LOG_CHECK_H_

#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

namespace lab_build {

// A line that is written when its statement ends.
class Line {
 public:
  Line(const char* severity, const char* file, int number) : severity_(severity) {
    const std::string path = file;
    text_ << severity << " " << path.substr(path.rfind('/') + 1) << ":" << number << "] ";
  }
  ~Line() {
    text_ << "\n";
    std::cerr << text_.str() << std::flush;
    if (severity_ == "FATAL") std::abort();
    if (severity_ == "QFATAL") std::_Exit(1);
  }
  std::ostream& stream() { return text_; }

 private:
  const std::string severity_;
  std::ostringstream text_;
};

// Makes a message to be left out an expression of the same type as one that is written.
struct Ignore {
  void operator&(std::ostream&) const {}
};

// Returns null if the comparison holds, or else what it was.
template <typename Compare, typename A, typename B>
std::unique_ptr<std::string> Complaint(const A& a, const B& b, const char* expression) {
  if (Compare()(a, b)) return nullptr;
  std::ostringstream text;
  text << expression << " (" << a << " vs. " << b << ") ";
  return std::make_unique<std::string>(text.str());
}

}  // namespace lab_build

#define LOG(severity) ::lab_build::Line(#severity, __FILE__, __LINE__).stream()
#define LOG_IF(severity, condition) \
  !(condition) ? (void)0 : ::lab_build::Ignore() & LOG(severity)
#define CHECK(condition) LOG_IF(FATAL, !(condition)) << "Check failed: " #condition " "
#define QCHECK(condition) LOG_IF(QFATAL, !(condition)) << "Check failed: " #condition " "
#define LAB_BUILD_COMPARE(compare, sign, a, b)                                            \
  while (auto complaint = ::lab_build::Complaint<compare>((a), (b), #a " " #sign " " #b)) \
  LOG(FATAL) << "Check failed: " << *complaint
#define CHECK_EQ(a, b) LAB_BUILD_COMPARE(std::equal_to<>, ==, a, b)
#define CHECK_NE(a, b) LAB_BUILD_COMPARE(std::not_equal_to<>, !=, a, b)
#define CHECK_LT(a, b) LAB_BUILD_COMPARE(std::less<>, <, a, b)
#define CHECK_LE(a, b) LAB_BUILD_COMPARE(std::less_equal<>, <=, a, b)
#define CHECK_GT(a, b) LAB_BUILD_COMPARE(std::greater<>, >, a, b)
#define CHECK_GE(a, b) LAB_BUILD_COMPARE(std::greater_equal<>, >=, a, b)

#endif
