// Transactions that are open, and those that have been prepared and wait for their manager's word.

import { post } from "../api.js";
import { ask } from "../dialogs.js";
import { h } from "../dom.js";
import { count, many } from "../format.js";
import { List } from "../list.js";
import { button, empty, head, panel, tag, when } from "../parts.js";
import { tell } from "../tell.js";

export const title = () => "Transactions";

export function show({ signal }) {
  const list = new List({
    path: "transactions",
    sort: "started",
    table: {
      caption: "Transactions",
      stack: true,
      key: ({ id }) => id,
      columns: columns((...all) => settle(list, ...all)),
    },
    none: () =>
      empty(
        "There are no transactions",
        h(
          "p",
          null,
          "Those of JMS clients appear here while they are open. A prepared one that its transaction manager has forgotten can be committed or rolled back by hand.",
        ),
      ),
    signal,
  });
  return h("div", { class: "page" }, head("Transactions"), panel(null, list.element));
}

const MANAGED =
  "If its transaction manager decides otherwise later, the two are at odds: ask there first.";

/** An X/Open id in words. */
function xidText(xid) {
  return xid ? Object.values(xid).join(":") : "–";
}

function columns(onsettle) {
  return [
    { key: "id", label: "ID", head: true, show: ({ id }) => String(id) },
    {
      key: "state",
      label: "State",
      same: ({ state }) => state,
      show: ({ state }) => tag(state, state === "prepared" ? "brass" : ""),
    },
    {
      key: "xid",
      label: "Global transaction ID",
      rank: 2,
      same: ({ xid }) => xidText(xid),
      show: ({ xid }) => h("code", null, xidText(xid)),
    },
    { key: "protocol", label: "Protocol", rank: 2, show: ({ protocol }) => protocol },
    { key: "owner", label: "Owner", rank: 2, show: ({ owner }) => owner ?? "–" },
    {
      key: "publishes",
      label: "Publishes",
      number: true,
      show: ({ publishes }) => count(publishes),
    },
    { key: "acks", label: "Acknowledgements", number: true, show: ({ acks }) => count(acks) },
    {
      key: "started",
      label: "Started",
      rank: 2,
      same: ({ started }) => String(started),
      show: ({ started }) => when(started),
    },
    {
      key: "actions",
      label: "Actions",
      hidden: true,
      number: true,
      same: ({ state }) => state,
      show: (item) => [
        item.state === "prepared" &&
          button("Commit…", () => onsettle(item, "commit"), {
            tone: "quiet small",
            name: `Commit ${item.id}…`,
          }),
        button("Roll back…", () => onsettle(item, "rollback"), {
          tone: "quiet small",
          name: `Roll ${item.id} back…`,
        }),
      ],
    },
  ];
}

async function settle(list, { id, state, publishes, acks }, how) {
  const commit = how === "commit";
  const text = commit
    ? `${many(publishes, "message")} it has sent will be delivered, and ${many(acks, "message")} it has received are done with.`
    : `${many(publishes, "message")} it has sent are dropped, and ${many(acks, "message")} it has received are delivered again.`;
  const done = await ask({
    title: commit ? `Commit transaction ${id}?` : `Roll transaction ${id} back?`,
    text: [text, state === "prepared" ? MANAGED : "Its client is told so when it wants to commit."],
    action: commit ? "Commit it" : "Roll it back",
    tone: "danger",
    submit: () => post(`transactions/${encodeURIComponent(id)}/${how}`),
  });
  if (!done) return;
  tell(`Transaction ${id} is ${commit ? "committed" : "rolled back"}`);
  list.look();
}
