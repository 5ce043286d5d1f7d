// Search in the documentation site when it is opened from the disk, without a server.
//
// Material's search runs in a Worker, which browsers refuse to pages of file://. This is a Worker
// that lives in a frame, as the package iframe-worker does it; Material's offline plugin would load
// that one from elsewhere, unless a file of this name is there.
"use strict";

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === inside) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        }
      });
      const load = (...scripts) => scripts.reduce((before, script) => before.then(
        () => new Promise((resolve) => {
          const element = document.createElement("script");
          element.onload = resolve;
          element.src = script;
          document.body.append(element);
        })), Promise.resolve());
      inside.document.open();
      inside.document.write(`<body><script>
        postMessage = (message) => parent.postMessage(message, "*");
        importScripts = ${load};
      </` + `script><script src="${url}"></` + "script></body>");
      inside.document.close();
      this.ready = new Promise((resolve) => { inside.onload = resolve; }); // open() forgets it
    }

    postMessage(data) {
      this.ready.then(() => {
        this.frame.contentWindow.dispatchEvent(
          new MessageEvent("message", { data: structuredClone(data) }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
