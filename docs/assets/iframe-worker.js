// A Worker in a hidden iframe, for pages that are opened from disk: browsers forbid workers there, and the search of this site needs one.
// The offline plugin would load such a script from the network; a file whose name has "iframe-worker" takes its place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const scope = this.frame.contentWindow
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = scope.document.createElement("script")
          script.src = new URL(source, new URL(url, location))
          script.onload = resolve
          script.onerror = reject
          scope.document.documentElement.appendChild(script)
        })
      scope.postMessage = (data) => this.receive(data)
      scope.importScripts = (...sources) => sources.reduce((done, source) => done.then(() => load(source)), Promise.resolve())
      this.ready = load("").catch(() => this.dispatchEvent(new ErrorEvent("error", { message: `cannot load ${url}` })))
    }

    receive(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      const scope = this.frame.contentWindow
      this.ready.then(() => {
        scope.dispatchEvent(new MessageEvent("message", { data }))
      })
    }

    terminate() {
      this.frame.remove()
    }
  }
}
