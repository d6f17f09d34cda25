// List of all queues and topics.

import { put as send } from "../api.js";
import { sendCommand } from "../commands.js";
import { openForm } from "../dialogs.js";
import { h } from "../dom.js";
import { bytes, compact, count, perSecond, duration } from "../format.js";
import { levelBar } from "../gauge.js";
import { List, choiceFilter, textFilter } from "../list.js";
import { live } from "../live.js";
import { DestinationRef } from "../destination_ref.js";
import { button, command, emptyState, head, panel, badge } from "../parts.js";
import { go } from "../router.js";
import { session } from "../session.js";

export const title = () => "Destinations";

const KINDS = [
  ["", "queues and topics"],
  ["queue", "queues"],
  ["topic", "topics"],
];
const LIFETIMES = [
  ["", "all"],
  ["false", "permanent"],
  ["true", "temporary"],
];

export function show({ signal }) {
  const list = new List({
    path: "destinations",
    sort: "name",
    filters: [
      textFilter("filter", "Name", "part of a name, or orders.*"),
      choiceFilter("kind", "Kind", KINDS),
      choiceFilter("temporary", "Lifetime", LIFETIMES),
    ],
    table: { caption: "Destinations", key: keyOf, columns: COLUMNS },
    emptyContent,
    signal,
  });
  const disabledReason = session.mayAnywhere("create")
    ? ""
    : `${session.user} has no permission to create destinations`;
  const create = button("Create…", createDestination, { tone: "primary", disabledReason });
  return h(
    "div",
    { class: "page" },
    head("Destinations", { actions: [create] }),
    panel(null, list.element),
  );
}

function keyOf(item) {
  return `${item.kind}/${item.name_base64 ?? item.name}`;
}

/** Return badges for the non-default properties of a destination. */
export function tags(item) {
  return [
    item.kind === "topic" && badge("topic"),
    item.temporary && badge("temporary"),
    item.paused && badge("paused", "accent-alt"),
  ];
}

function number(key, label, format, more = {}) {
  const show = (item) => format(item[key]);
  return { key, label, number: true, sort: true, first: "desc", show, ...more };
}

const COLUMNS = [
  {
    key: "name",
    label: "Name",
    sort: true,
    head: true,
    wide: true,
    fingerprint: (item) => `${keyOf(item)} ${item.temporary} ${item.paused}`,
    show: (item) => [h("a", { class: "name", href: DestinationRef.of(item).href() }, item.name), tags(item)],
  },
  number("ready", "Ready", compact, {
    fingerprint: (item) => String(item.ready),
    show: (item) => levelBar(item.ready),
  }),
  number("unacked", "Unacked", compact, { rank: 2 }),
  number("bytes", "Size", bytes, { rank: 3 }),
  number("publish_rate", "Publish rate", perSecond),
  number("deliver_rate", "Deliver rate", perSecond),
  number("consumers", "Consumers", count, { rank: 2 }),
  number("oldest_ms", "Oldest", (value) => (value === null ? "–" : duration(value)), {
    rank: 3,
    sort: false,
  }),
];

function emptyContent(filtered) {
  if (filtered) {
    return emptyState(
      "No matching destinations",
      h("p", null, "The filter matches any part of a name; * matches any characters."),
    );
  }
  if (!session.superuser) {
    return emptyState(
      "There are no destinations that you may see",
      h("p", null, "You see a destination if you have a permission on it."),
    );
  }
  return emptyState(
    "There are no destinations yet",
    h("p", null, "A queue is created when it is first used:"),
    command(sendCommand(live.overview?.listeners, "orders")),
    h("p", null, "Or select Create… above to choose its settings."),
  );
}

async function createDestination() {
  const destination = await openForm({
    title: "Create a destination",
    fields: [
      { name: "name", label: "Name", required: true, maxlength: 1024 },
      {
        name: "kind",
        label: "Kind",
        kind: "choice",
        options: [
          ["queue", "queue: each message goes to one consumer"],
          ["topic", "topic: each message goes to every subscription"],
        ],
      },
      {
        name: "max_messages",
        label: "Maximum ready messages",
        kind: "number",
        min: 0,
        value: 0,
        hint: "0 means no limit. Other settings can be changed later.",
      },
      {
        name: "dead_letter",
        label: "Dead-letter undeliverable messages",
        kind: "check",
      },
    ],
    action: "Create",
    async submit({ name, kind, ...settings }) {
      const created = new DestinationRef(kind, name);
      for (const [setting, value] of Object.entries(settings)) if (!value) delete settings[setting];
      await send(created.path(), settings, { query: created.query({ expect: "new" }) });
      return created;
    },
  });
  if (destination) go(destination.href());
}
