// References to destinations in the API and in the addresses of pages.

/** Names that URLs treat as relative steps, even if they are escaped. */
const STEPS = new Set(["", ".", ".."]);

function base64(name) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(name)));
}

/** Return the segment of a path and the query parameter for a name. `encoded` is the base64 of a name
    that is not text. */
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

  /** Return the reference for an item of a list. */
  static of(item) {
    return new DestinationRef(item.kind, item.name, item.name_base64 ?? "");
  }

  /** Return the reference in the address of a page. */
  static read(kind, segment, query) {
    return new DestinationRef(kind, segment, query.get("name_base64") ?? "");
  }

  /** Path of the destination in the API. */
  path(below = "") {
    return `destinations/${this.kind}/${this.segment}${below}`;
  }

  /** Query parameters that every request for the destination needs. */
  query(more = {}) {
    return this.base64 ? { name_base64: this.base64, ...more } : more;
  }

  /** The path with that query, for requests that have a body. */
  full(below = "") {
    return this.base64 ? `${this.path(below)}?${this.search()}` : this.path(below);
  }

  /** Fields that name the destination in the body of a request. */
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
