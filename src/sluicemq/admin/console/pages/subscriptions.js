// Subscriptions of a topic.

import { remove } from "../api.js";
import { openForm } from "../dialogs.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { levelBar } from "../gauge.js";
import { List } from "../list.js";
import { button, emptyState, panel, badge } from "../parts.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";

export function show(destination, signal) {
  const list = new List({
    path: "subscriptions",
    fixed: destination.filterQuery(),
    table: {
      caption: "Subscriptions",
      stack: true,
      key: ({ name }) => name,
      columns: columns(destination, (item) => deleteSubscription(destination, item, list)),
    },
    emptyContent,
    signal,
  });
  return panel(null, list.element);
}

function columns(destination, ondelete) {
  return [
    {
      key: "name",
      label: "Name",
      head: true,
      fingerprint: ({ name, durable, shared }) => `${name} ${durable} ${shared}`,
      show: ({ name, display_name: label, client_id: client, durable, shared }) => [
        h("span", { class: "name" }, label || name),
        client && badge(`client ${client}`),
        durable && badge("durable"),
        shared && badge("shared"),
      ],
    },
    {
      key: "owner",
      label: "Owner",
      rank: 2,
      fingerprint: ({ owner }) => owner ?? "",
      show: ({ owner }) => owner ?? "–",
    },
    {
      key: "selector",
      label: "Selector",
      rank: 2,
      fingerprint: ({ selector }) => selector ?? "",
      show: ({ selector }) => (selector ? h("code", null, selector) : "–"),
    },
    {
      key: "ready",
      label: "Ready",
      number: true,
      fingerprint: (item) => String(item.ready),
      show: (item) => levelBar(item.ready),
    },
    { key: "unacked", label: "Unacked", number: true, show: (item) => count(item.unacked) },
    { key: "consumers", label: "Consumers", number: true, show: (item) => count(item.consumers) },
    {
      key: "delete",
      label: "Actions",
      hidden: true,
      number: true,
      fingerprint: ({ name, durable }) => `${name} ${durable}`,
      show: (item, latest) =>
        item.durable &&
        button("Delete…", () => ondelete(latest()), {
          tone: "quiet small",
          name: `Delete ${item.display_name || item.name}…`,
          disabledReason:
            item.owner && item.owner === session.user
              ? ""
              : session.denialReason("manage", destination.name),
        }),
    },
  ];
}

async function deleteSubscription(destination, item, list) {
  const done = await openForm({
    title: `Delete the subscription ${item.display_name || item.name}?`,
    text: [
      item.ready + item.unacked > 0
        ? `${plural(item.ready + item.unacked, "message")} will be deleted permanently.`
        : "It has no messages.",
      "Its subscriber misses messages published before it subscribes again.",
    ],
    action: "Delete",
    tone: "danger",
    submit: () =>
      remove("subscriptions", {
        ...destination.filterQuery(),
        name: item.name,
        force: item.consumers ? "true" : "",
      }),
  });
  if (!done) return;
  notify(`Subscription ${item.display_name || item.name} deleted`);
  list.refresh();
}

function emptyContent() {
  return emptyState(
    "No subscriptions",
    h(
      "p",
      null,
      "Published messages are discarded unless the topic retains messages without subscriptions. JMS clients create a durable subscription with createDurableSubscriber.",
    ),
  );
}
