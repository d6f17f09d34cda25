// Table of messages, with the columns of each row.

import { h } from "../dom.js";
import { bytes } from "../format.js";
import { badge, timeElement } from "../parts.js";
import { Table } from "../table.js";

/** Return the table of a list with `destination`, `subscription`, `selected` (ids), `previews` (by id) and
    `tools()`. */
export function messageTable(list) {
  return new Table({
    caption: "Messages",
    key: ({ id }) => id,
    columns: [
      {
        key: "chosen",
        label: "Select",
        hidden: true,
        fingerprint: ({ id }) => `${id} ${list.selected.has(id)}`,
        show: ({ id }) => checkbox(list, id),
      },
      {
        key: "id",
        label: "Message",
        head: true,
        fingerprint: ({ id, subscription }) => `${id} ${subscription}`,
        show: (item) => h("a", { class: "name", href: hrefOf(list.destination, item) }, item.id),
      },
      {
        key: "body",
        label: "Body",
        wide: true,
        fingerprint: ({ id, body_kind: kind, damaged }) => `${kind} ${damaged} ${list.previews.get(id)}`,
        show: ({ id, body_kind: kind, damaged }) => [
          badge(damaged ? "damaged" : kind, damaged ? "bad" : ""),
          h("span", { class: "preview" }, list.previews.get(id)),
        ],
      },
      { key: "size", label: "Size", number: true, show: ({ size }) => bytes(size) },
      { key: "protocol", label: "Protocol", rank: 2, show: ({ protocol }) => protocol },
      number("priority", "Priority", 3),
      number("attempts", "Attempts", 2),
      number("property_count", "Properties", 3),
      {
        key: "published",
        label: "Published",
        rank: 2,
        fingerprint: ({ published }) => String(published),
        show: ({ published }) => timeElement(published),
      },
    ],
  });
}

function number(key, label, rank) {
  return { key, label, rank, number: true, show: (item) => String(item[key]) };
}

/** Return the address of the page of a message; one of a topic belongs to a subscription. */
function hrefOf(destination, { id, subscription }) {
  return destination.href(`/messages/${encodeURIComponent(id)}`, subscription ? { subscription } : {});
}

function checkbox(list, id) {
  const control = h("input", { type: "checkbox", "aria-label": `Select message ${id}` });
  control.checked = list.selected.has(id);
  control.addEventListener("change", () => {
    if (control.checked) list.selected.add(id);
    else list.selected.delete(id);
    list.tools();
  });
  return control;
}
