// What pages are put together from.

import { Refusal, abandoned } from "./api.js";
import { h, put, say } from "./dom.js";
import { moment, span } from "./format.js";
import { tell } from "./tell.js";

/** The head of a page: its name, what belongs beside it, and what can be done there. */
export function head(title, { beside = null, actions = [] } = {}) {
  return h(
    "header",
    { class: "page-head" },
    h("div", { class: "page-name" }, h("h1", { tabindex: "-1" }, title), beside),
    actions.length > 0 && h("div", { class: "actions" }, actions),
  );
}

/** A part of a page with a name. */
export function panel(title, content, { beside = null, kind = "" } = {}) {
  return h(
    "section",
    { class: `panel ${kind}` },
    title && h("div", { class: "panel-head" }, h("h2", null, title), beside),
    content,
  );
}

/** A button. A reason why it cannot be used is told to everybody, by the button itself. */
export function button(label, onclick, { tone = "", why = "", name = null } = {}) {
  if (!why) return h("button", { type: "button", class: tone, onclick, "aria-label": name }, label);
  return h(
    "button",
    {
      type: "button",
      class: tone,
      "aria-disabled": "true",
      "aria-label": name ? `${name}: ${why}` : `${label}: ${why}`,
      title: why,
      onclick: () => tell(why, "bad"),
    },
    label,
  );
}

/** A command to be typed into a terminal, with a button that copies it. */
export function command(text) {
  const copy = h(
    "button",
    { type: "button", class: "copy", "aria-label": `Copy: ${text}` },
    "Copy",
  );
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell("Copied");
    } catch {
      tell("The browser does not allow access to the clipboard", "bad");
    }
  });
  return h("div", { class: "command" }, h("code", null, text), copy);
}

/** What is told where there is nothing to be seen yet: why, and what to do about it. */
export function empty(title, ...content) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), content);
}

/** A refusal or another failure, in place of what was asked for. */
export function failure(error, again = null) {
  const said = error instanceof Refusal ? error.message : `Console error: ${error}`;
  return h(
    "div",
    { class: "failure", role: "alert", "data-said": error.message },
    h("p", null, said),
    again && h("button", { type: "button", onclick: again }, "Try again"),
  );
}

/** Names and values. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))),
  );
}

/** A large figure with its name; `set(text)` changes it. */
export function reading(name, tone = "") {
  const figure = h("b", { class: "figure" });
  const below = h("small");
  return {
    element: h("div", { class: `reading ${tone}` }, h("span", null, name), figure, below),
    set(text, note = "") {
      say(figure, text);
      say(below, note);
    },
  };
}

/** A time, and how long ago that is when one looks closer. */
export function when(value) {
  if (!(value > 0)) return "–";
  const ago = Date.now() - value;
  const told = ago >= 0 ? `${span(ago)} ago` : `in ${span(-ago)}`;
  const iso = new Date(value).toISOString();
  return h("time", { datetime: iso, title: `${told} (${iso})` }, moment(value));
}

/** A word that classifies. */
export function tag(text, tone = "") {
  return h("span", { class: `tag ${tone}` }, text);
}

/**
 * Fill a part of a page by `load`, now and whenever what is given back is called; a failure is shown
 * in its place. Nothing is shown of an answer that came too late.
 */
export function loading(element, load, signal) {
  let turn = 0;
  return async function again() {
    turn += 1;
    const mine = turn;
    try {
      await load();
    } catch (error) {
      if (abandoned(error) || signal.aborted || mine !== turn) return;
      if (!(error instanceof Refusal)) console.error(error);
      // the same once more is nothing that anybody has to be told
      const there = element.querySelector(".failure")?.dataset.said === error.message;
      if (error.status !== 401 && !there) put(element, failure(error, again));
    }
  };
}

/** Do something that the broker may refuse; tells how it went. Gives whether it was done. */
export async function attempt(action, said) {
  try {
    const result = await action();
    tell(typeof said === "function" ? said(result) : said);
    return true;
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    tell(error.message, "bad");
    return false;
  }
}
