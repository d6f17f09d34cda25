// What happened, told to everybody: as a note that can be seen, and to screen readers. Figures that
// change by themselves are never told here; nobody could listen to anything else.

import { h } from "./dom.js";

const LIFE = 6_000;

const notes = h("div", { class: "notes", role: "status", "aria-live": "polite" });
const murmur = h("div", { class: "unseen", role: "status", "aria-live": "polite" });

/** The elements; to be put into the page once. */
export function tellers() {
  return [notes, murmur];
}

/** A note for a few seconds. */
export function tell(text, tone = "good") {
  const note = h("p", { class: `note ${tone}` }, text);
  notes.append(note);
  setTimeout(() => note.remove(), tone === "bad" ? LIFE * 2 : LIFE);
}

/** Only for screen readers: a page has come, a list has so many rows. */
export function whisper(text) {
  murmur.textContent = "";
  // an empty text first: the same words twice would not be a change
  requestAnimationFrame(() => {
    murmur.textContent = text;
  });
}
