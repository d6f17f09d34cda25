// The body of a message, of any kind: as text, as JSON with syntax highlighting, as a table of its
// values, or byte by byte.

import { h } from "./dom.js";
import { count } from "./format.js";
import { valueList, badge } from "./parts.js";

const PER_LINE = 16;
/** Maximum number of bytes in a hex dump. */
const MAX_BYTES = 16_384;

/** Maximum number of levels of JSON on lines of their own: the spaces before the lines grow with the
    square of the depth. */
const MAX_LEVELS = 50;

const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|([{}[\],])|([^\s"{}[\],:]+)/g;
/** Characters of a body in a list. */
const PREVIEW = 160;

/** Return JSON with line breaks and syntax highlighting. The original tokens are used, because numbers
    with many digits would lose precision if they were parsed. */
function formatJson(text) {
  const nodes = [];
  let depth = 0;
  const line = () => nodes.push(`\n${"  ".repeat(depth)}`);
  let previous = "";
  for (const [, string, colon, sign, other] of text.matchAll(TOKEN)) {
    const closes = sign === "}" || sign === "]";
    if (closes) depth -= 1;
    const opened = previous === "{" || previous === "[";
    const breaks = previous && (closes ? !opened : opened || previous === ",");
    if (breaks && depth <= MAX_LEVELS) line();
    if (sign === "{" || sign === "[") depth += 1;
    if (sign) nodes.push(sign);
    else if (colon) nodes.push(h("span", { class: "key" }, string), ": ");
    else if (string) nodes.push(h("span", { class: "string" }, string));
    else nodes.push(h("span", { class: "other" }, other));
    previous = sign ?? (colon ? ":" : "value");
  }
  return nodes;
}

/** Return a hex dump with 16 bytes per line: offset, hexadecimal digits, text. */
function hexDump(bytes) {
  const lines = [];
  const dumped = bytes.slice(0, MAX_BYTES);
  for (let at = 0; at < dumped.length; at += PER_LINE) {
    const line = [...dumped.slice(at, at + PER_LINE)];
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

function hexBlock(bytes) {
  const isCut = bytes.length > MAX_BYTES;
  return [
    isCut && h("p", { class: "hint" }, `Only the first ${count(MAX_BYTES)} bytes are displayed; the download is complete.`),
    block("Body, bytes", "hex", hexDump(bytes)),
  ];
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

/** Return an element for a typed value of a map, a stream or a property. */
export function value({ type, value: content }) {
  if (type === "map") return typedMap(content);
  return [h("code", null, content === null ? "null" : String(content)), " ", badge(type)];
}

function typedMap(content) {
  return valueList(
    Object.entries(content).map(([name, typed]) => [h("code", null, name), value(typed)]),
  );
}

/** Return valid JSON with line breaks and indentation, and all other text unchanged. */
function textBody(text) {
  const trimmed = text.trimStart();
  if (trimmed.startsWith("{") || trimmed.startsWith("[")) {
    try {
      JSON.parse(text);
      return block("Body, JSON", "", formatJson(text));
    } catch {
      // it only looks like JSON
    }
  }
  return block("Body, text", "", text);
}

/** Return an element for a `body` of the API. */
export function bodyView({ kind, encoding, value: content, class: named }) {
  if (kind === "none") return h("p", { class: "hint" }, "The message has no body.");
  const isEmpty = content === "" || (typeof content === "object" && Object.keys(content).length === 0);
  if (isEmpty) return h("p", { class: "hint" }, "The body is empty.");
  switch (encoding) {
    case "text":
    case "json":
      return textBody(content);
    case "map":
      return typedMap(content);
    case "stream":
      return valueList(content.map((typed, index) => [`${index + 1}`, value(typed)]));
    default:
      return h(
        "div",
        null,
        named && h("p", null, "Java object of the class ", h("code", null, named)),
        hexBlock(decoded(content)),
      );
  }
}

function plainValue(typed) {
  return typed !== null && typeof typed === "object" && "value" in typed
    ? plainValue(typed.value)
    : typed;
}

/** Return the beginning of a body on one line. */
export function preview({ kind, encoding, value: content }) {
  if (kind === "none") return "";
  let text = content;
  if (encoding === "map") {
    text = Object.entries(content)
      .map(([name, typed]) => `${name} = ${plainValue(typed)}`)
      .join(", ");
  } else if (encoding === "stream") text = content.map((typed) => String(plainValue(typed))).join(", ");
  else if (encoding === "object" || encoding === "base64") {
    const bytes = decoded(content.slice(0, 64));
    text = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  }
  return text
    .slice(0, PREVIEW * 2)
    .replaceAll(/\s+/g, " ")
    .trim()
    .slice(0, PREVIEW);
}
