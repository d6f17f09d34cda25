// The subscriptions of a destination: each has a line of messages of its own.

import { remove } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { count, many } from "../format.js";
import { standing } from "../gauge.js";
import { List } from "../list.js";
import { button, empty, panel, tag } from "../parts.js";
import { session } from "../session.js";
import { tell } from "../tell.js";

export function show(place, signal) {
  const list = new List({
    path: "subscriptions",
    fixed: place.asked(),
    table: {
      caption: "Subscriptions",
      stack: true,
      key: ({ name }) => name,
      columns: columns(place, (item) => deleteSubscription(place, item, list)),
    },
    none,
    signal,
  });
  return panel(null, list.element);
}

function columns(place, ondelete) {
  return [
    {
      key: "name",
      label: "Name",
      head: true,
      same: ({ name, durable, shared }) => `${name} ${durable} ${shared}`,
      show: ({ name, display_name: label, client_id: client, durable, shared }) => [
        h("span", { class: "name" }, label || name),
        client && tag(`of ${client}`),
        durable && tag("durable"),
        shared && tag("shared"),
      ],
    },
    {
      key: "owner",
      label: "Owner",
      rank: 2,
      same: ({ owner }) => owner ?? "",
      show: ({ owner }) => owner ?? "–",
    },
    {
      key: "selector",
      label: "Selector",
      rank: 2,
      same: ({ selector }) => selector ?? "",
      show: ({ selector }) => (selector ? h("code", null, selector) : "–"),
    },
    {
      key: "ready",
      label: "Ready",
      number: true,
      same: (item) => String(item.ready),
      show: (item) => standing(item.ready),
    },
    { key: "unacked", label: "Unacked", number: true, show: (item) => count(item.unacked) },
    { key: "consumers", label: "Consumers", number: true, show: (item) => count(item.consumers) },
    {
      key: "delete",
      label: "Actions",
      hidden: true,
      number: true,
      same: ({ name, durable }) => `${name} ${durable}`,
      show: (item) =>
        item.durable &&
        button("Delete…", () => ondelete(item), {
          tone: "quiet small",
          name: `Delete ${item.display_name || item.name}…`,
          why:
            item.owner && item.owner === session.user
              ? ""
              : session.whyNot("manage", place.name),
        }),
    },
  ];
}

async function deleteSubscription(place, item, list) {
  const done = await ask({
    title: `Delete the subscription ${item.display_name || item.name}?`,
    text: [
      item.ready + item.unacked > 0
        ? `${many(item.ready + item.unacked, "message")} of this subscription will be deleted. This cannot be undone.`
        : "No message waits in it.",
      "Its subscriber gets what is published only after it has subscribed again.",
    ],
    action: "Delete",
    tone: "danger",
    submit: () =>
      remove("subscriptions", {
        ...place.asked(),
        name: item.name,
        force: item.consumers ? "true" : "",
      }),
  });
  if (!done) return;
  tell(`The subscription ${item.display_name || item.name} is deleted`);
  list.look();
}

function none() {
  return empty(
    "Nobody has subscribed",
    h(
      "p",
      null,
      "What is published now is kept for nobody, unless the topic's settings say so. A JMS client subscribes with createDurableSubscriber, a VibeMQ client by subscribing.",
    ),
  );
}
