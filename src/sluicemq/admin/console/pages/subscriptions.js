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
import { destinationQuery } from "./messages.js";

export function show(place, signal) {
  const list = new List({
    path: "subscriptions",
    fixed: destinationQuery(place),
    table: {
      caption: "Subscriptions", stack: true,
      key: ({ name }) => name,
      columns: columns(place, (item) => drop(place, item, list)),
    },
    none: () => none(place),
    signal,
  });
  return panel(null, list.element);
}

function columns(place, ondrop) {
  return [
    {
      key: "name",
      label: "Name",
      head: true,
      same: ({ name, durable, shared }) => `${name} ${durable} ${shared}`,
      show: ({ name, durable, shared }) => [
        h("span", { class: "name" }, name || "the queue itself"),
        durable && place.kind === "topic" && tag("durable"),
        shared && tag("shared"),
      ],
    },
    {
      key: "selector",
      label: "Selector",
      rank: 2,
      same: ({ selector }) => selector ?? "",
      show: ({ selector }) => (selector ? h("code", null, selector) : "–"),
    },
    { key: "waiting", label: "Waiting", number: true, same: (item) => String(item.waiting), show: (item) => standing(item.waiting) },
    { key: "unacked", label: "Unacked", number: true, show: (item) => count(item.unacked) },
    { key: "consumers", label: "Consumers", number: true, show: (item) => count(item.consumers) },
    {
      key: "drop",
      label: "Actions",
      hidden: true,
      number: true,
      same: ({ name, durable }) => `${name} ${durable}`,
      show: (item) =>
        item.durable &&
        place.kind === "topic" &&
        button("Delete…", () => ondrop(item), {
          tone: "quiet small",
          name: `Delete ${item.name}…`,
          why: session.whyNot("delete", place.name),
        }),
    },
  ];
}

async function drop(place, item, list) {
  const done = await ask({
    title: `Delete the subscription ${item.name}?`,
    text: [
      item.waiting + item.unacked > 0
        ? `${many(item.waiting + item.unacked, "message")} that only it keeps are gone for ever.`
        : "No message waits in it.",
      "Its subscriber gets what is published only after it has subscribed again.",
    ],
    action: "Delete it",
    tone: "danger",
    submit: () => remove("subscriptions", { ...destinationQuery(place), name: item.name }),
  });
  if (!done) return;
  tell(`The subscription ${item.name} is deleted`);
  list.look();
}

function none(place) {
  if (place.kind === "queue") return empty("A queue is one line: it has no subscriptions of its own");
  return empty(
    "Nobody has subscribed",
    h("p", null, "What is published now is kept for nobody, unless the topic's settings say so. A JMS client subscribes with createDurableSubscriber, a VibeMQ client by subscribing."),
  );
}
