// Elements without markup: everything that comes from the broker becomes a text node or the value
// of an attribute, so that no name, header or body can ever be read as HTML. Nothing in the console
// makes elements in another way, and the page's policy forbids it.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Add strings, numbers, nodes, and arrays of them; null and false are nothing. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** An HTML element. `on…` attributes are listeners, `true` is an attribute without a value. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace what is in an element. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Set a text if it differs: what has not changed is not touched, nor read out again. */
export function say(element, text) {
  const content = String(text);
  if (element.textContent !== content) element.textContent = content;
  return element;
}

let numbers = 0;

/** An id that no other element has. */
export function unique(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** Text for screen readers only. */
export function unseen(text) {
  return h("span", { class: "unseen" }, text);
}
