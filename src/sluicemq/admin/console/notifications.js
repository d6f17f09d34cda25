// Notifications: results of operations, shown for some seconds and read by screen readers. Values
// that change continuously are not announced.

import { h } from "./dom.js";

const DURATION_MS = 6_000;

const notes = h("div", { class: "notes", role: "status", "aria-live": "polite" });
const announcements = h("div", { class: "visually-hidden", role: "status", "aria-live": "polite" });

/** Return the live regions, to be added to the page once. */
export function notificationAreas() {
  return [notes, announcements];
}

/** Show a notification for some seconds. */
export function notify(text, tone = "good") {
  const note = h("p", { class: `note ${tone}` }, text);
  notes.append(note);
  setTimeout(() => note.remove(), tone === "bad" ? DURATION_MS * 2 : DURATION_MS);
}

/** Announce a text to screen readers only, such as the title of an opened page. */
export function announce(text) {
  announcements.textContent = "";
  // without the empty text a repeated announcement would not be a change
  requestAnimationFrame(() => {
    announcements.textContent = text;
  });
}
