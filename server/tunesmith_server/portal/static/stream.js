// One EventSource for many topics: exact across reconnections, by the number of each topic's last event.

const LEAST_MS = 500;
const SOON_MS = 2000; // the longest wait in the first minutes: a restart takes seconds
const SOON_FOR_MS = 120000;
const MOST_MS = 15000;
const SILENT_MS = 25000; // the server pings every 10 s

/** Topics of one listener: job id or "list", to the number of its last event. */
export class Stream {
  /** @param {string} address */
  constructor(address) {
    this.address = address;
    /** @type {Map<(message: object) => void, Map<string, number>>} */
    this.listeners = new Map();
    this.wait = LEAST_MS;
    this.shown = "";
  }

  /** Say what a listener wants; it gets each later event once. */
  watch(listener, topics) {
    this.listeners.set(listener, new Map(topics));
    if (this.state) listener({ kind: "state", state: this.state });
    this.plan();
  }

  leave(listener) {
    this.listeners.delete(listener);
    this.plan();
  }

  plan(delay = 30) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), delay);
  }

  /** Least position of each topic among the listeners. */
  positions() {
    const least = new Map();
    for (const topics of this.listeners.values()) {
      for (const [topic, seq] of topics) least.set(topic, Math.min(least.get(topic) ?? Infinity, seq));
    }
    return least;
  }

  connect() {
    const positions = this.positions();
    const covered = [...positions].every(([topic, seq]) => this.reach?.has(topic) && this.reach.get(topic) <= seq);
    const same = covered && this.reach.size === positions.size;
    if (same && this.source && this.source.readyState !== 2) return;
    this.close();
    if (!positions.size) return;
    this.reach = positions;
    const watch = [...positions].map(([topic, seq]) => (topic === "list" ? topic : `${topic}:${seq}`)).join();
    const source = (this.source = new EventSource(`${this.address}?watch=${encodeURIComponent(watch)}`));
    source.addEventListener("hello", () => {
      this.wait = LEAST_MS;
      this.lostAt = 0;
      this.tell("on");
      this.alive();
    });
    source.addEventListener("ping", () => this.alive());
    source.onerror = () => this.lost();
    source.addEventListener("row", (event) => this.send("list", { kind: "row", data: JSON.parse(event.data) }));
    source.addEventListener("event", (event) => {
      const data = JSON.parse(event.data);
      this.send(`ftjob-${data.id.split("-")[1]}`, { kind: "event", data }, data.seq);
    });
    source.addEventListener("done", (event) => {
      const { id } = JSON.parse(event.data);
      this.send(id, { kind: "done", id });
    });
  }

  send(topic, message, seq) {
    this.alive();
    for (const [listener, topics] of this.listeners) {
      if (!topics.has(topic) || seq <= topics.get(topic)) continue;
      if (seq) topics.set(topic, seq);
      listener(message);
    }
  }

  alive() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lost(), SILENT_MS);
  }

  lost() {
    this.close();
    this.tell("lost");
    this.plan(this.wait * (0.7 + 0.6 * Math.random()));
    this.lostAt ||= Date.now();
    const most = Date.now() - this.lostAt < SOON_FOR_MS ? SOON_MS : MOST_MS;
    this.wait = Math.min(most, this.wait * 1.7);
  }

  close() {
    clearTimeout(this.silence);
    this.source?.close();
    this.source = this.reach = null;
  }

  tell(state) {
    this.state = state;
    for (const listener of this.listeners.keys()) listener({ kind: "state", state });
  }
}
