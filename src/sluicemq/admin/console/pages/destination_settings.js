// Settings of a destination, as a form.

import { ApiError, get, put as send } from "../api.js";
import { h, replaceContent } from "../dom.js";
import { loading, panel } from "../parts.js";
import { session } from "../session.js";
import { changedSettings, settingFields } from "../settings.js";
import { notify } from "../notifications.js";

export function show(destination, signal, destinationPage) {
  const content = h("div");
  const refresh = loading(
    content,
    async () =>
      replaceContent(content, form(await get(destination.path(), destination.query(), signal), destination, destinationPage, refresh)),
    signal,
  );
  refresh();
  return panel(null, content);
}

function form(
  { settings = {}, effective = {}, configured, temporary, name },
  destination,
  destinationPage,
  refresh,
) {
  const disabledReason = temporary
    ? "temporary destinations cannot be changed"
    : session.denialReason("manage", name);
  const alert = h("p", { class: "error", role: "alert" });
  const saveButton = h("button", { type: "submit", class: "primary", disabled: Boolean(disabledReason) }, "Save");
  const fields = h("fieldset", { disabled: Boolean(disabledReason) }, settingFields(destination.kind, settings));
  const element = h(
    "form",
    null,
    h(
      "p",
      { class: "hint" },
      "0 means no limit or never. An empty field restores the default. Examples: 30 s, 5 min, 10 MiB.",
    ),
    configured &&
      h(
        "p",
        { class: "hint" },
        "The configuration file declares this destination; its settings are applied again at the next start.",
      ),
    disabledReason && h("p", null, `The settings are read-only: ${disabledReason}.`),
    fields,
    effective.dead_letter_queue &&
      h("p", { class: "hint" }, `Dead letters go to ${effective.dead_letter_queue}.`),
    alert,
    h("div", { class: "buttons" }, saveButton),
  );
  element.addEventListener("submit", async (event) => {
    event.preventDefault();
    alert.textContent = "";
    const changed = changedSettings(element, destination.kind, settings);
    if (!Object.keys(changed).length) {
      notify("No changes");
      return;
    }
    saveButton.disabled = true;
    try {
      await send(destination.path(), changed, { query: destination.query({ expect: "existing" }) });
      notify("Settings saved");
      destinationPage.refresh();
      await refresh();
      document.querySelector(".tab form button[type=submit]")?.focus();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      replaceContent(alert, error.message);
      saveButton.disabled = false;
    }
  });
  return element;
}
