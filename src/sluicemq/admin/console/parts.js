// Parts of pages: headings, panels, buttons, lists of values.

import { ApiError, isAborted } from "./api.js";
import { h, replaceContent, setText } from "./dom.js";
import { moment, duration } from "./format.js";
import { notify } from "./notifications.js";

/** Return the heading of a page: its title, an element beside it, and buttons. */
export function head(title, { aside = null, actions = [] } = {}) {
  return h(
    "header",
    { class: "page-head" },
    h("div", { class: "page-name" }, h("h1", { tabindex: "-1" }, title), aside),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  );
}

/** Return a section of a page with a heading. */
export function panel(title, content, { aside = null, kind = "" } = {}) {
  return h(
    "section",
    { class: `panel ${kind}` },
    title && h("div", { class: "panel-head" }, h("h2", null, title), aside),
    content,
  );
}

/** Return a button. With a `disabledReason` it is disabled, and the reason is in its accessible name. */
export function button(label, onclick, { tone = "", disabledReason = "", name = null } = {}) {
  if (!disabledReason) return h("button", { type: "button", class: tone, onclick, "aria-label": name }, label);
  return h(
    "button",
    {
      type: "button",
      class: tone,
      "aria-disabled": "true",
      "aria-label": name ? `${name}: ${disabledReason}` : `${label}: ${disabledReason}`,
      title: disabledReason,
      onclick: () => notify(disabledReason, "bad"),
    },
    label,
  );
}

/** Return a terminal command with a button that copies it. */
export function command(text) {
  const copyButton = h(
    "button",
    { type: "button", class: "copy", "aria-label": `Copy: ${text}` },
    "Copy",
  );
  copyButton.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      notify("Copied");
    } catch {
      notify("The browser does not allow access to the clipboard", "bad");
    }
  });
  return h("div", { class: "command" }, h("code", null, text), copyButton);
}

/** Return the content of an empty list: the reason, and what the user can do. */
export function emptyState(title, ...content) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), content);
}

/** Return an error message, shown in place of the requested content. */
export function errorElement(error, retry = null) {
  const text = error instanceof ApiError ? error.message : `Console error: ${error}`;
  return h(
    "div",
    { class: "failure", role: "alert", "data-message": error.message },
    h("p", null, text),
    retry && h("button", { type: "button", onclick: retry }, "Try again"),
  );
}

/** Return a list of names and values. */
export function valueList(pairs) {
  return h(
    "dl",
    { class: "value-list" },
    pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** Update the texts of a list of names and values of the same names, so that a selection of others stays. */
export function updateValueList(list, pairs) {
  list.querySelectorAll("dd").forEach((element, index) => {
    const [, value] = pairs[index];
    if (typeof value === "string") setText(element, value);
  });
}

/** Return a large number with a label; `set(text)` changes it. */
export function reading(name, tone = "") {
  const figure = h("b", { class: "figure" });
  const noteElement = h("small");
  return {
    element: h("div", { class: `reading ${tone}` }, h("span", null, name), figure, noteElement),
    set(text, note = "") {
      setText(figure, text);
      setText(noteElement, note);
    },
  };
}

/** The latest time of a Date, in ms. */
const LAST_TIME = 8.64e15;

/** Return a time; its tooltip says how long ago it was. */
export function timeElement(value) {
  if (!(value > 0)) return "–";
  if (value > LAST_TIME) return "after the year 275760";
  const ago = Date.now() - value;
  const relative = ago >= 0 ? `${duration(ago)} ago` : `in ${duration(-ago)}`;
  const iso = new Date(value).toISOString();
  return h("time", { datetime: iso, title: `${relative} (${iso})` }, moment(value));
}

/** Return a badge. */
export function badge(text, tone = "") {
  return h("span", { class: `tag ${tone}` }, text);
}

/**
 * Return a function that fills a part of a page by `load(signal)`; a failure is displayed in its place.
 * A new call aborts the requests of the previous one, so that late responses are ignored.
 */
export function loading(element, load, pageSignal) {
  let request = new AbortController();
  return async function retry() {
    request.abort();
    request = new AbortController();
    const signal = AbortSignal.any([request.signal, pageSignal]);
    try {
      await load(signal);
    } catch (error) {
      if (isAborted(error) || signal.aborted) return;
      if (!(error instanceof ApiError)) console.error(error);
      // a repeated failure is not announced again
      const isShown = element.querySelector(".failure")?.dataset.message === error.message;
      if (error.status !== 401 && !isShown) replaceContent(element, errorElement(error, retry));
    }
  };
}

/** Run an operation and notify of its result. Returns whether it succeeded. */
export async function attempt(action, message) {
  try {
    const result = await action();
    notify(typeof message === "function" ? message(result) : message);
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    notify(error.message, "bad");
    return false;
  }
}
