// The effective settings and their sources.

import { get } from "../api.js";
import { h, replaceContent } from "../dom.js";
import { bytes, millis, duration } from "../format.js";
import { head, loading, panel, badge } from "../parts.js";
import { Table } from "../table.js";
import { announce } from "../notifications.js";

export const title = () => "Configuration";

export function show({ signal }) {
  const table = new Table({
    caption: "Effective settings",
    stack: true,
    key: ({ name }) => name,
    columns: COLUMNS,
  });
  const filter = h("input", { type: "search", id: "filter-settings", autocomplete: "off" });
  const nonDefaultOnly = h("input", { type: "checkbox", id: "filter-other" });
  const content = h("div", null, table.element);
  let settings = [];
  const update = () => {
    const term = filter.value.trim().toLowerCase();
    const matches = settings.filter(
      ({ name, description = "", source }) =>
        `${name} ${description}`.toLowerCase().includes(term) &&
        (!nonDefaultOnly.checked || source !== "default"),
    );
    table.update(matches);
    return matches.length;
  };
  const applyFilter = () => announce(`${update()} found`);
  filter.addEventListener("input", applyFilter);
  nonDefaultOnly.addEventListener("change", applyFilter);
  loading(
    content,
    async () => {
      settings = (await get("configuration", { limit: 500 }, signal)).items;
      update();
      if (content.firstChild !== table.element) replaceContent(content, table.element);
    },
    signal,
  )();
  const filters = h(
    "div",
    { class: "filters" },
    h("div", { class: "field grow" }, h("label", { for: filter.id }, "Name or description"), filter),
    h(
      "div",
      { class: "pair check" },
      nonDefaultOnly,
      h("label", { for: nonDefaultOnly.id }, "show only non-default values"),
    ),
  );
  const aside = h(
    "p",
    { class: "about" },
    "Changed in the configuration file, by the environment or on the command line.",
  );
  return h(
    "div",
    { class: "page" },
    head("Configuration", { aside }),
    panel(null, [filters, content]),
  );
}

function text(value, unit = "") {
  if (value === null || value === undefined) return "–";
  if (value && unit === "bytes") return bytes(value);
  if (value && unit === "ms") return value < 1000 ? millis(value) : duration(value);
  if (value && unit === "s") return duration(value * 1000);
  return typeof value === "string" ? value || "“”" : JSON.stringify(value);
}

const COLUMNS = [
  {
    key: "name",
    label: "Setting",
    head: true,
    fingerprint: ({ name, description }) => `${name} ${description}`,
    show: ({ name, description }) => [
      h("span", { class: "name" }, name),
      description && h("div", { class: "hint" }, description),
    ],
  },
  {
    key: "value",
    label: "Value",
    fingerprint: ({ value, unit }) => text(value, unit),
    show: ({ value, unit }) => h("code", null, text(value, unit)),
  },
  {
    key: "default",
    label: "Default",
    rank: 3,
    fingerprint: (item) => text(item.default, item.unit),
    show: (item) => h("code", null, text(item.default, item.unit)),
  },
  {
    key: "source",
    label: "From",
    rank: 2,
    fingerprint: ({ source }) => source,
    show: ({ source }) => (source === "default" ? source : badge(source, "accent-alt")),
  },
];
