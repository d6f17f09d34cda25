// The body of a message, of any kind: as text, as JSON with its parts told apart, as a table of its
// values, or byte by byte.

import { h } from "./dom.js";
import { facts, tag } from "./parts.js";

const PER_LINE = 16;
/** Bytes that are shown one by one. */
const MOST_BYTES = 16_384;

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*|true|false|null)|([{}[\],]|\s+)/g;

/** JSON with line breaks; names, strings and other values in colours of their own. */
function coloured(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > at) nodes.push(text.slice(at, match.index));
    const [whole, string, colon, other] = match;
    if (string && colon) nodes.push(h("span", { class: "key" }, string), colon);
    else if (string) nodes.push(h("span", { class: "string" }, string));
    else if (other) nodes.push(h("span", { class: "other" }, other));
    else nodes.push(whole);
    at = match.index + whole.length;
  }
  nodes.push(text.slice(at));
  return nodes;
}

/** 16 bytes to a line: where, in hexadecimal, as text. */
function dump(bytes) {
  const lines = [];
  const shown = bytes.slice(0, MOST_BYTES);
  for (let at = 0; at < shown.length; at += PER_LINE) {
    const line = [...shown.slice(at, at + PER_LINE)];
    const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = line.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·"));
    lines.push(
      h("span", { class: "faint" }, at.toString(16).padStart(6, "0")),
      `  ${hex.padEnd(PER_LINE * 3)} `,
      h("span", { class: "string" }, text.join("")),
      "\n",
    );
  }
  return lines;
}

function decoded(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function block(label, kind, content) {
  return h(
    "pre",
    { class: `body ${kind}`, tabindex: "0", role: "region", "aria-label": label },
    content,
  );
}

/** A typed value of a map, a stream or a property. */
export function value({ type, value: content }) {
  const text =
    content === null
      ? "null"
      : typeof content === "object"
        ? JSON.stringify(content)
        : String(content);
  return [h("code", null, text), " ", tag(type)];
}

function asJson(content) {
  return block("Body, JSON", "", coloured(JSON.stringify(content, null, 2)));
}

function asText(text) {
  const trimmed = text.trimStart();
  if (trimmed.startsWith("{") || trimmed.startsWith("[")) {
    try {
      return asJson(JSON.parse(text));
    } catch {
      // it only looks like JSON
    }
  }
  return block("Body, text", "", text);
}

/** An element that shows it; `body` as the API tells it. */
export function bodyView({ kind, encoding, value: content, ...more }) {
  if (kind === "none" || content === null || content === undefined) {
    if (encoding !== "json") return h("p", { class: "hint" }, "It has no body.");
  }
  switch (encoding) {
    case "text":
      return content === "" ? h("p", { class: "hint" }, "The body is empty.") : asText(content);
    case "json":
      return asJson(content);
    case "map":
      return facts(
        Object.entries(content).map(([name, typed]) => [h("code", null, name), value(typed)]),
      );
    case "stream":
      return facts(content.map((typed, index) => [`${index + 1}`, value(typed)]));
    default: {
      const bytes = decoded(content);
      const named =
        more.class_name &&
        h("p", null, "Java object of the class ", h("code", null, more.class_name));
      return h("div", null, named, block("Body, bytes", "hex", dump(bytes)));
    }
  }
}
