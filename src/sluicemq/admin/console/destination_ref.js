// How a destination is addressed: in the API, and in the address of its page.

/** In a path these would be taken for steps in it, however they are written. */
const STEPS = new Set(["", ".", ".."]);

function base64(name) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(name)));
}

/** The part of a path and the query that address a name. `encoded` is the base64 of one that is no
    text. */
function addressed(name, encoded) {
  if (encoded) return ["~", encoded];
  return STEPS.has(name) ? ["~", base64(name)] : [encodeURIComponent(name), ""];
}

/** A reference to a destination: its kind and name. */
export class DestinationRef {
  constructor(kind, name, encoded = "") {
    this.kind = kind;
    this.name = name;
    this.encoded = encoded;
    [this.segment, this.base64] = addressed(name, encoded);
  }

  /** As it comes in lists of the API. */
  static of(item) {
    return new DestinationRef(item.kind, item.name, item.name_base64 ?? "");
  }

  /** As it stands in the address of a page. */
  static read(kind, segment, query) {
    return new DestinationRef(kind, segment, query.get("name_base64") ?? "");
  }

  /** Its path in the API, below which is everything that belongs to it. */
  path(below = "") {
    return `destinations/${this.kind}/${this.segment}${below}`;
  }

  /** The query its requests need beside their own. */
  query(more = {}) {
    return this.base64 ? { name_base64: this.base64, ...more } : more;
  }

  /** The path with that query, for requests that have a body. */
  full(below = "") {
    return this.base64 ? `${this.path(below)}?${this.search()}` : this.path(below);
  }

  /** Its fields in the body of a request. */
  toBody() {
    return this.base64
      ? { kind: this.kind, name_base64: this.base64 }
      : { kind: this.kind, name: this.name };
  }

  /** The query that filters other lists by this destination. */
  filterQuery() {
    return this.base64 ? { destination_base64: this.base64 } : { destination: this.name };
  }

  search() {
    return new URLSearchParams({ name_base64: this.base64 }).toString();
  }

  /** The address of its page, or of a tab of it; `more` is kept in its query. */
  href(below = "", more = {}) {
    // the name itself, also of ".": browsers do not touch what is behind #
    const query = new URLSearchParams(more);
    if (this.encoded) query.set("name_base64", this.encoded);
    const search = query.toString();
    return `#/${this.kind}/${encodeURIComponent(this.name)}${below}${search ? `?${search}` : ""}`;
  }

  toString() {
    return this.kind === "topic" ? `topic ${this.name}` : this.name;
  }
}
