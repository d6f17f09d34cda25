// Dead-letter queues, with the reasons of their messages.

import { deleteMessages, redriveMessages } from "../actions.js";
import { h } from "../dom.js";
import { compact, count, duration, plural } from "../format.js";
import { List } from "../list.js";
import { DestinationRef } from "../destination_ref.js";
import { button, command, emptyState, head, panel, badge } from "../parts.js";
import { session } from "../session.js";

export const title = () => "Dead letters";

export function show({ signal }) {
  const list = new List({
    path: "dead-letters",
    sort: "",
    table: {
      caption: "Dead-letter queues",
      stack: true,
      key: (item) => item.name_base64 ?? item.name,
      columns: columns((...all) => runAction(list, ...all)),
    },
    emptyContent,
    signal,
  });
  return h(
    "div",
    { class: "page" },
    head("Dead letters", {
      aside: h("p", { class: "about" }, "Messages that could not be delivered."),
    }),
    panel(null, list.element),
  );
}

function columns(onaction) {
  return [
    {
      key: "name",
      label: "Queue",
      head: true,
      fingerprint: (item) => JSON.stringify([item.name, item.sources]),
      show: (item) => [
        h("a", { class: "name", href: DestinationRef.of(item).href() }, item.name),
        item.sources?.length > 0 && h("div", { class: "hint" }, `of ${item.sources.join(", ")}`),
      ],
    },
    { key: "ready", label: "Messages", number: true, show: ({ ready }) => compact(ready) },
    {
      key: "reasons",
      label: "Reasons",
      fingerprint: ({ reasons, scanned, ready }) => JSON.stringify([reasons, scanned < ready]),
      show: ({ reasons, scanned, ready }) => [
        Object.entries(reasons).map(([reason, times]) => [badge(`${reason} ${count(times)}`), " "]),
        scanned > 0 &&
          scanned < ready &&
          h("div", { class: "hint" }, `of the first ${plural(scanned, "message")}`),
      ],
    },
    {
      key: "oldest_ms",
      label: "Oldest",
      number: true,
      rank: 2,
      show: ({ oldest_ms: age }) => (age ? duration(age) : "–"),
    },
    {
      key: "actions",
      label: "Actions",
      hidden: true,
      number: true,
      fingerprint: ({ ready }) => String(ready > 0),
      show: (item) => {
        const disabledReason = (operation) =>
          item.ready ? session.denialReason(operation, item.name) : "the queue is empty";
        return [
          button("Redrive all…", () => onaction(item, redriveMessages), {
            tone: "quiet small",
            disabledReason: disabledReason("consume"),
            name: `Redrive all of ${item.name}…`,
          }),
          button("Purge…", () => onaction(item, purgeMessages), {
            tone: "quiet small",
            disabledReason: disabledReason("manage"),
            name: `Purge ${item.name}…`,
          }),
        ];
      },
    },
  ];
}

function purgeMessages(...messages) {
  return deleteMessages(...messages, "Purge");
}

async function runAction(list, item, action) {
  if (await action(DestinationRef.of(item), "all dead letters", { all: true })) list.refresh();
}

function emptyContent() {
  return emptyState(
    session.superuser ? "There are no dead letters" : "There are no dead-letter queues that you may see",
    h(
      "p",
      null,
      "Select “Dead-letter undeliverable messages” in the settings of a destination, or create a queue with the setting:",
    ),
    command(
      `sluicemq queues create orders dead_letter=true max_attempts=5 --url ${location.origin}`,
    ),
  );
}
