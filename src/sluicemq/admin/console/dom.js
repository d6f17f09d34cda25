// Creation of elements. Data from the broker becomes text nodes or values of attributes, so that no
// name, header or body is parsed as HTML. The console creates elements with these functions only; the
// content security policy forbids other ways.

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

/** Append strings, numbers, nodes, and arrays of them; null and false are skipped. */
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Return an HTML element. `on…` attributes are listeners; `true` is an attribute without a value. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Return an SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Replace the content of an element. */
export function replaceContent(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

function controls(element) {
  return [...element.querySelectorAll("a, button, input")];
}

/** Focus the control of an element at that position, or its last one. */
export function focusControl(element, position = 0) {
  const found = controls(element);
  (found[position] ?? found.at(-1))?.focus({ preventScroll: true });
}

/** Replace the content of an element. If it has the focus, the control at that position gets it. */
export function replaceControls(element, ...children) {
  const position = controls(element).indexOf(document.activeElement);
  replaceContent(element, children);
  if (position >= 0) focusControl(element, position);
}

/** Set a text if it differs, so that screen readers do not repeat an unchanged one. */
export function setText(element, text) {
  const content = String(text);
  if (element.textContent !== content) element.textContent = content;
  return element;
}

let numbers = 0;

/** Return a unique id for an element. */
export function uniqueId(prefix) {
  numbers += 1;
  return `${prefix}-${numbers}`;
}

/** Return text for screen readers only. */
export function screenReaderText(text) {
  return h("span", { class: "visually-hidden" }, text);
}
