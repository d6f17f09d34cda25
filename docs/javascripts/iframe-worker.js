// Browsers do not start a worker for a page that is opened from a file. The search of the theme
// needs one, so this class runs the worker's script in a hidden frame of the page instead.
// The plugin `offline` would otherwise load such a class from another host.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #unsent = [];

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const scope = this.#frame.contentWindow;
      scope.document.open();
      scope.document.write("<body></body>");
      scope.document.close();
      scope.postMessage = (data) =>
        setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
      const script = scope.document.createElement("script");
      script.src = String(url);
      script.addEventListener("load", () => {
        const unsent = this.#unsent;
        this.#unsent = null;
        unsent.forEach((data) => this.postMessage(data));
      });
      scope.document.body.append(script);
    }

    postMessage(data) {
      if (this.#unsent) {
        this.#unsent.push(data);
      } else {
        const scope = this.#frame.contentWindow;
        setTimeout(() => scope.dispatchEvent(new scope.MessageEvent("message", { data })));
      }
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
