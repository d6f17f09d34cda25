// Form that publishes a message.

import { ApiError, post } from "../api.js";
import { h, replaceContent } from "../dom.js";
import { field, values } from "../fields.js";
import { DestinationRef } from "../destination_ref.js";
import { panel } from "../parts.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";

const KINDS = [
  ["text", "text"],
  ["json", "JSON"],
  ["bytes", "bytes, in base64"],
  ["none", "no body"],
];
const TYPES = [
  ["string", "text"],
  ["int", "whole number"],
  ["float", "number"],
  ["boolean", "true or false"],
];
const BOOLEANS = new Map([
  ["true", true],
  ["false", false],
]);
const DURABILITIES = [
  ["sync", "on disk before the response"],
  ["lazy", "on disk shortly after the response"],
  ["none", "in memory only"],
];

const BODY_FIELDS = [
  { name: "body_kind", label: "Body type", kind: "choice", options: KINDS },
  { name: "body", label: "Body", kind: "area", rows: 8 },
];
const HEADER_FIELDS = [
  { name: "priority", label: "Priority (0-9)", kind: "number", min: 0, max: 9, placeholder: "4" },
  { name: "ttl_ms", label: "TTL", kind: "ms", min: 0 },
  { name: "delay_ms", label: "Delay", kind: "ms", min: 0 },
  { name: "durability", label: "Durability", kind: "choice", options: DURABILITIES },
  { name: "correlation_id", label: "Correlation ID" },
  { name: "type", label: "Type" },
  { name: "message_id", label: "Message ID" },
  { name: "reply_to", label: "Reply to" },
];

export function show(destination, signal, destinationPage) {
  const disabledReason = session.denialReason("produce", destination.name);
  if (disabledReason) return panel(null, h("p", null, `Publishing is not allowed: ${disabledReason}.`));
  const rows = h("div", { class: "properties" });
  const alert = h("p", { class: "error", role: "alert" });
  const publishButton = h("button", { type: "submit", class: "primary" }, "Publish");
  const addButton = h("button", { type: "button", class: "quiet" }, "Add a property");
  addButton.addEventListener("click", () => {
    const row = property();
    rows.append(row);
    row.querySelector("input").focus();
  });
  const form = h(
    "form",
    { class: "publish" },
    BODY_FIELDS.map(field),
    h("fieldset", null, h("legend", null, "Properties"), rows, addButton),
    h(
      "details",
      null,
      h("summary", null, "Headers"),
      h("div", { class: "fields" }, HEADER_FIELDS.map(field)),
    ),
    alert,
    h("div", { class: "buttons" }, publishButton),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    alert.textContent = "";
    publishButton.disabled = true;
    try {
      const { id } = await post(destination.full("/messages"), message(form));
      notify(`Published as message ${id}`);
      destinationPage.refresh();
      form.elements.body.select();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      replaceContent(alert, error.message);
    } finally {
      publishButton.disabled = false;
    }
  });
  return panel(null, form);
}

function property() {
  const row = h(
    "div",
    { class: "property" },
    h("input", { "aria-label": "Name of the property", placeholder: "name", required: true }),
    h(
      "select",
      { "aria-label": "Type of the property" },
      TYPES.map(([value, label]) => h("option", { value }, label)),
    ),
    h("input", { "aria-label": "Value of the property", placeholder: "value" }),
  );
  const remove = h(
    "button",
    { type: "button", class: "quiet", "aria-label": "Remove the property" },
    "Remove",
  );
  remove.addEventListener("click", () => row.remove());
  row.append(remove);
  return row;
}

function typed(type, text) {
  // the broker rejects all other texts
  if (type === "boolean") return { type, value: BOOLEANS.get(text.trim().toLowerCase()) ?? text };
  // numbers are sent as text: JavaScript would round large ones
  return { type, value: type === "string" ? text : text.trim() };
}

function bodyOf(kind, text) {
  if (kind === "none") return { body_kind: kind };
  if (kind === "bytes") return { body_base64: text.replaceAll(/\s/g, ""), body_kind: kind };
  return { body: text, body_kind: kind };
}

/** Return the request of the form for the API. */
function message(form) {
  const { body_kind: kind, body } = values(form, BODY_FIELDS);
  const request = bodyOf(kind, body);
  const properties = [...form.querySelectorAll(".property")].map((row) => {
    const [name, type, text] = row.querySelectorAll("input, select");
    return [name.value, typed(type.value, text.value)];
  });
  if (properties.length) request.properties = Object.fromEntries(properties);
  if (properties.length > Object.keys(request.properties ?? {}).length) {
    throw new ApiError(0, "duplicate-property", "Two properties have the same name.");
  }
  const { reply_to: reply, ...headers } = values(form, HEADER_FIELDS);
  for (const [name, content] of Object.entries(headers)) {
    if (content !== null && content !== "") request[name] = content;
  }
  if (reply) request.reply_to = new DestinationRef("queue", reply).toBody();
  return request;
}
