// Keyboard shortcuts: `/` to search, `g` and the key of a page to open it, `?` for a list of them.
//
// They can be disabled, because dictation software may trigger them unintentionally (WCAG 2.1.4),
// and are ignored while an input has the focus.

import { show } from "./dialogs.js";
import { h } from "./dom.js";
import { visiblePages } from "./navigation.js";
import { go } from "./router.js";

const STORED = "sluicemq.keys";
/** Time in ms for the key after `g`. */
const SEQUENCE_MS = 1_500;

let leading = 0;

function enabled() {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

function enable(on) {
  try {
    localStorage.setItem(STORED, on ? "on" : "off");
  } catch {
    // without storage they stay on
  }
}

function typing(target) {
  return (
    target instanceof HTMLElement && target.closest("input, textarea, select, dialog") !== null
  );
}

/** Enable the shortcuts; `actions` are {search(), theme()}. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (typing(event.target) || !enabled()) return;
    const led = Date.now() - leading < SEQUENCE_MS;
    leading = 0;
    if (led) {
      const page = visiblePages().find(({ keys }) => keys === event.key);
      if (page) {
        event.preventDefault();
        go(`#/${page.step}`);
      }
      return;
    }
    if (event.key === "g") leading = Date.now();
    else if (event.key === "/") {
      event.preventDefault();
      actions.search();
    } else if (event.key === "?") help();
    else if (event.key === "d") actions.theme();
  });
}

function keyed(keys, what) {
  return h(
    "tr",
    null,
    h(
      "th",
      { scope: "row" },
      keys.map((key, index) => [index > 0 && " then ", h("kbd", null, key)]),
    ),
    h("td", null, what),
  );
}

/** Show the list of shortcuts. */
export function help() {
  const box = h("input", { type: "checkbox", id: "keys-on" });
  box.checked = enabled();
  box.addEventListener("change", () => enable(box.checked));
  show(
    "Keys",
    h(
      "table",
      { class: "keys" },
      h("caption", { class: "unseen" }, "Keyboard shortcuts"),
      h(
        "tbody",
        null,
        keyed(["/"], "search"),
        keyed(["?"], "this list"),
        keyed(["d"], "dark mode"),
        visiblePages().map((page) => keyed(["g", page.keys], page.label)),
        keyed(["Esc"], "close, or leave the search"),
      ),
    ),
    h("p", { class: "pair" }, box, h("label", { for: "keys-on" }, "Enable single-key shortcuts")),
  );
}
