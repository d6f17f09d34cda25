// The settings of a destination as fields of a form: their labels and hints. Names and meanings are the
// configuration file's (docs/configuration.md); 0 is no limit, or never.

import { h } from "./dom.js";
import { field, values } from "./fields.js";

const OVERFLOW = [
  ["reject-new", "reject new messages"],
  ["drop-oldest", "drop the oldest message"],
  ["drop-lowest-priority", "drop the message of lowest priority"],
  ["block-publisher", "block producers"],
  ["redirect-to-dead-letter", "move to the dead-letter queue"],
];

const GROUPS = [
  [
    "Limits",
    [
      { name: "max_messages", label: "Maximum ready messages", kind: "number" },
      { name: "max_bytes", label: "Maximum size of ready messages", kind: "bytes" },
      { name: "max_message_bytes", label: "Maximum message size", kind: "bytes" },
      {
        name: "overflow",
        label: "Overflow policy",
        kind: "choice",
        options: OVERFLOW,
        defaultValue: "reject-new",
      },
    ],
  ],
  [
    "Lifetime and delivery",
    [
      { name: "message_ttl", label: "Message TTL", kind: "ms" },
      {
        name: "ack_timeout",
        label: "Acknowledgement timeout",
        kind: "ms",
        hint: "Unacked messages are then redelivered.",
      },
      { name: "max_attempts", label: "Maximum delivery attempts", kind: "number" },
      {
        name: "retry_delay",
        label: "Retry delay",
        kind: "ms",
        hint: "Doubles each time.",
      },
      { name: "retry_delay_max", label: "Maximum retry delay", kind: "ms", defaultValue: 120_000 },
      { name: "priority_ordering", label: "Order by priority", kind: "check", defaultValue: true },
      { name: "auto_ack", label: "Automatic acknowledgement, VibeMQ", kind: "check" },
    ],
  ],
  [
    "Dead letters",
    [
      { name: "dead_letter", label: "Dead-letter undeliverable messages", kind: "check" },
      {
        name: "dead_letter_queue",
        label: "Dead-letter queue",
        hint: "If empty, the name of the destination with .dlq appended.",
      },
    ],
  ],
  [
    "Consumers",
    [
      { name: "max_consumers", label: "Maximum consumers", kind: "number", hint: "1 means exclusive." },
      {
        name: "active_consumers",
        label: "Active consumers",
        kind: "number",
        hint: "Other consumers are on standby.",
      },
      { name: "max_subscriptions", label: "Maximum subscriptions", kind: "number", only: "topic" },
      {
        name: "retain_without_subscriptions",
        label: "Retain messages without subscriptions",
        kind: "check",
        only: "topic",
      },
      {
        name: "idle_timeout",
        label: "Delete when unused for",
        kind: "ms",
        defaultValue: null,
        hint: "If empty, the broker's default applies; 0 means never.",
      },
    ],
  ],
];

function defaultValue(spec) {
  if ("defaultValue" in spec) return spec.defaultValue;
  if (spec.kind === "check") return false;
  return spec.kind ? 0 : "";
}

function specsFor(kind, settings) {
  return GROUPS.map(([name, specs]) => [
    name,
    specs
      .filter((spec) => !spec.only || spec.only === kind)
      .map((spec) => ({ ...spec, min: 0, value: settings[spec.name] ?? defaultValue(spec) })),
  ]);
}

/** Return the fields, in groups, for a destination of that kind with those settings. */
export function settingFields(kind, settings = {}) {
  return specsFor(kind, settings).map(([name, specs]) =>
    h("fieldset", null, h("legend", null, name), h("div", { class: "fields" }, specs.map(field))),
  );
}

/** Return the settings that differ from `before`; an emptied field is null, which restores the default. */
export function changedSettings(form, kind, before) {
  const specs = specsFor(kind, before).flatMap(([, all]) => all);
  const entered = values(form, specs);
  const changed = specs.filter(
    ({ name, value }) => String(entered[name] ?? "") !== String(value ?? ""),
  );
  return Object.fromEntries(changed.map(({ name }) => [name, entered[name]]));
}
