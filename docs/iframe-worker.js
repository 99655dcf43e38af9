// Search runs in a worker, which browsers do not start on pages that are opened as files. There its
// script runs in a hidden frame instead, which gets and sends the same messages.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (own) =>
        new Promise((done) => {
          const script = frame.contentDocument.createElement("script");
          script.onload = done;
          script.src = own;
          frame.contentDocument.body.append(script);
        });
      this.inner.importScripts = (...urls) => urls.reduce((last, own) => last.then(() => load(own)), Promise.resolve());
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })));
    }
  };
}
