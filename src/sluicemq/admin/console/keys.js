// Keyboard shortcuts: `/` to search, `g` and the key of a page to open it, `?` for a list of them.
//
// They can be disabled, because dictation software may trigger them unintentionally (WCAG 2.1.4),
// and are ignored while an input has the focus or a dialog is open.

import { showDialog } from "./dialogs.js";
import { h } from "./dom.js";
import { visiblePages } from "./navigation.js";
import { go } from "./router.js";

const STORED = "sluicemq.keys";
/** Time in ms for the key after `g`. */
const SEQUENCE_MS = 1_500;

let prefixPressedAt = 0;

function isEnabled() {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

function setEnabled(on) {
  try {
    localStorage.setItem(STORED, on ? "on" : "off");
  } catch {
    // without storage they stay on
  }
}

function isTyping(target) {
  return (
    target instanceof HTMLElement && target.closest("input, textarea, select") !== null
  );
}

/** Enable the shortcuts; `actions` are {search(), theme()}. */
export function enableShortcuts(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (isTyping(event.target) || document.querySelector("dialog[open]") || !isEnabled()) return;
    const hasPrefix = Date.now() - prefixPressedAt < SEQUENCE_MS;
    prefixPressedAt = 0;
    if (hasPrefix) {
      const page = visiblePages().find(({ keys }) => keys === event.key);
      if (page) {
        event.preventDefault();
        go(`#/${page.step}`);
      }
      return;
    }
    if (event.key === "g") prefixPressedAt = Date.now();
    else if (event.key === "/") {
      event.preventDefault();
      actions.search();
    } else if (event.key === "?") showShortcuts();
    else if (event.key === "d") actions.theme();
  });
}

function shortcutRow(keys, description) {
  return h(
    "tr",
    null,
    h(
      "th",
      { scope: "row" },
      keys.map((key, index) => [index > 0 && " then ", h("kbd", null, key)]),
    ),
    h("td", null, description),
  );
}

/** Show the list of shortcuts. */
export function showShortcuts() {
  const checkbox = h("input", { type: "checkbox", id: "keys-on" });
  checkbox.checked = isEnabled();
  checkbox.addEventListener("change", () => setEnabled(checkbox.checked));
  showDialog(
    "Keys",
    h(
      "table",
      { class: "keys" },
      h("caption", { class: "visually-hidden" }, "Keyboard shortcuts"),
      h(
        "tbody",
        null,
        shortcutRow(["/"], "search"),
        shortcutRow(["?"], "this list"),
        shortcutRow(["d"], "dark mode"),
        visiblePages().map((page) => shortcutRow(["g", page.keys], page.label)),
        shortcutRow(["Esc"], "close, or leave the search"),
      ),
    ),
    h("p", { class: "pair" }, checkbox, h("label", { for: "keys-on" }, "Enable single-key shortcuts")),
  );
}
