// Modal dialogs: forms, and confirmations that state the consequences.

import { ApiError } from "./api.js";
import { h, replaceContent, uniqueId } from "./dom.js";
import { field, values } from "./fields.js";
import { notify } from "./notifications.js";

/**
 * Show a form; return the result of `submit`, or null if the user cancels.
 *
 * {title, text: […], fields: […], action, tone: "danger", submit(values, signal)}; `text` are paragraphs,
 * `fields` as in fields.js. An error of `submit` is displayed in the dialog, which stays open.
 *
 * If the user cancels while `submit` is running, `signal` is aborted, and the result is that of `submit`:
 * what the broker has already done cannot be undone.
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
    const cancelled = new AbortController();
    let result = Promise.resolve(null);
    const run = async () => {
      alert.hidden = true;
      submitButton.disabled = true;
      try {
        const submitted = (await submit(values(form, fields), cancelled.signal)) ?? true;
        dialog.close();
        return submitted;
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (!dialog.open) notify(error.message, "bad");
        replaceContent(alert, error.message);
        alert.hidden = false;
        return null;
      } finally {
        submitButton.disabled = false;
      }
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      result = run();
    });
    dialog.addEventListener("close", () => {
      // the browser has given the focus back to where it was
      dialog.remove();
      cancelled.abort();
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
