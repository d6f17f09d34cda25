// Modal dialogs: forms, and confirmations that state the consequences.

import { ApiError } from "./api.js";
import { h, replaceContent, uniqueId } from "./dom.js";
import { field, values } from "./fields.js";

/**
 * Show a form; return the result of `submit`, or null if the user cancels.
 *
 * {title, text: […], fields: […], action, tone: "danger", submit(values)}; `text` are paragraphs,
 * `fields` as in fields.js. An error of `submit` is displayed in the dialog, which stays open.
 */
export function openForm({ title, text = [], fields = [], action, tone = "", submit }) {
  const heading = uniqueId("dialog");
  const alert = h("p", { class: "error", role: "alert", hidden: true });
  const submitButton = h("button", { type: "submit", class: tone || "primary" }, action);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: heading }, title),
    text.map((paragraph) => (paragraph instanceof Node ? paragraph : h("p", null, paragraph))),
    fields.map(field),
    alert,
    h("div", { class: "buttons" }, cancel, submitButton),
  );
  const dialog = h(
    "dialog",
    { "aria-labelledby": heading, class: fields.length ? "" : "plain" },
    form,
  );
  return new Promise((resolve) => {
    let result = null;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      alert.hidden = true;
      submitButton.disabled = true;
      try {
        result = (await submit(values(form, fields))) ?? true;
        dialog.close();
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        replaceContent(alert, error.message);
        alert.hidden = false;
      } finally {
        submitButton.disabled = false;
      }
    });
    dialog.addEventListener("close", () => {
      // the browser has given the focus back to where it was
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    // Enter must not confirm an operation that deletes something
    if (tone === "danger" && !fields.length) cancel.focus();
  });
}

/** Show a dialog without fields. */
export function showDialog(title, ...content) {
  const heading = uniqueId("dialog");
  const close = h(
    "button",
    { type: "button", class: "primary", onclick: () => dialog.close() },
    "Close",
  );
  const dialog = h(
    "dialog",
    { "aria-labelledby": heading },
    h("h2", { id: heading }, title),
    content,
    h("div", { class: "buttons" }, close),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  return dialog;
}
