// The live link. A frame is a hint with sequence numbers: what is missing is fetched from the database, nothing is guessed.
const FIRST_WAIT = 500;
const LONGEST_WAIT = 15000;
const PAGE = 2000;

export class Link {
  // hooks: seen() -> {attempt, seq}, events(list), run(change), restart(), status(word, detail)
  constructor(base, path, hooks) {
    this.base = base;
    this.path = path;
    this.hooks = hooks;
    this.wait = FIRST_WAIT;
    this.filling = null;
    this.closed = false;
    this.everLive = false;
  }

  open() {
    const url = new URL(this.path, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(url);
    this.socket.addEventListener("open", () => this.opened());
    this.socket.addEventListener("message", (message) => this.received(JSON.parse(message.data)));
    this.socket.addEventListener("close", (event) => this.lost(event.code));
  }

  opened() {
    // What was committed between the last event seen and now was announced to nobody here.
    this.fill()
      .then(() => {
        this.wait = FIRST_WAIT;
        this.everLive = true;
        if (this.socket.readyState === WebSocket.OPEN) this.hooks.status("live");
      })
      .catch(() => this.socket.close());
  }

  received(frame) {
    if (frame.run) return this.hooks.run(frame.run);
    const { attempt, seq } = this.hooks.seen();
    if (frame.attempt !== undefined && frame.attempt !== attempt) {
      // A resume began: its numbers start at 1 again, so the page starts afresh.
      if (frame.attempt > attempt) this.hooks.restart();
      return undefined;
    }
    if (frame.gap) return this.refill();
    if (frame.last <= seq) return undefined;
    if (this.filling || frame.first > seq + 1) return this.refill();
    this.hooks.events(frame.events);
    return undefined;
  }

  // What could not be fetched now is fetched after a new connection: events after a hole are never applied.
  refill() {
    const { socket } = this;
    return this.fill().catch((error) => {
      console.warn("Missing events could not be fetched:", error.message);
      socket.close();
    });
  }

  // One refetch at a time; a call during one runs again after it, so nothing announced meanwhile is forgotten.
  fill() {
    if (this.filling) {
      this.again = true;
      return this.filling;
    }
    this.filling = this.fetchMissing().finally(() => {
      this.filling = null;
      if (this.again) {
        this.again = false;
        this.refill();
      }
    });
    return this.filling;
  }

  async fetchMissing() {
    for (;;) {
      const { attempt, seq } = this.hooks.seen();
      if (!attempt) return;
      const reply = await fetch(`${this.base}events.json?attempt=${attempt}&after=${seq}&limit=${PAGE}`, { credentials: "same-origin" });
      if (!reply.ok) throw new Error(`events.json answered ${reply.status}`);
      const body = await reply.json();
      if (!body.events.length) return;
      this.hooks.events(body.events);
      if (this.hooks.seen().seq >= body.through_seq) return;
    }
  }

  lost(code) {
    if (this.closed) return;
    if (code === 4401) {
      location.assign(`/login/?next=${encodeURIComponent(location.pathname)}`);
      return;
    }
    if (code === 4403 || code === 4404) {
      this.hooks.status("lost", "no longer visible to you");
      return;
    }
    const seconds = Math.max(1, Math.round(this.wait / 1000));
    this.hooks.status("lost", this.everLive ? `reconnecting in ${seconds} s` : `connecting again in ${seconds} s`);
    // Jitter, so that a restarted server is not met by every page at once.
    setTimeout(() => {
      this.hooks.status("lost", "reconnecting");
      this.open();
    }, this.wait * (0.7 + Math.random() * 0.6));
    this.wait = Math.min(LONGEST_WAIT, this.wait * 1.8);
  }
}
