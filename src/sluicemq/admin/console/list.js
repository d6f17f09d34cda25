// A list of the API as a table. The broker filters, sorts and pages it; it is requested again every
// few seconds. Filters, order and page are kept in the address of the page.

import { get } from "./api.js";
import { h, replaceContent } from "./dom.js";
import { loading } from "./parts.js";
import { every } from "./live.js";
import { currentRoute, storeQuery } from "./router.js";
import { Pager, Table } from "./table.js";
import { announce } from "./notifications.js";

/** Delay of the request after the last key in a filter, in ms. */
const INPUT_DELAY_MS = 200;
const PAGE_SIZE = 50;

export class List {
  /**
   * {path, fixed: {…}, filters: [control], sort, order, size, interval, table: {…}, none(filtered), signal,
   *  inUrl: false}
   *
   * `path` in the API, `fixed` parameters that the user does not choose; `filters` as made by the
   * functions below; `emptyContent` returns the content of an empty list; with `inUrl: false` nothing is kept in
   * the address of the page, which belongs to another list.
   */
  constructor({
    path,
    fixed = {},
    filters = [],
    sort = "",
    order = "asc",
    size = PAGE_SIZE,
    interval = 3_000,
    ...rest
  }) {
    Object.assign(this, { path, fixed, filters, size, interval, ...rest });
    this.defaults = { sort, order };
    const query = rest.inUrl === false ? new URLSearchParams() : currentRoute().query;
    this.page = Math.max(1, Number.parseInt(query.get("page") ?? "1", 10) || 1);
    this.sort = query.get("sort") ?? sort;
    this.order = query.get("order") ?? order;
    this.pager = new Pager(this.table.caption, (page) => this.openPage(page));
    this.table = new Table({ ...this.table, onSort: (column) => this.sortBy(column) });
    this.emptyState = h("div", { hidden: true });
    this.content = h("div", null, this.table.element, this.pager.element, this.emptyState);
    this.rows = h("div", null, this.content);
    for (const filter of filters) filter.bind(query.get(filter.name) ?? "", () => this.applyFilters());
    this.element = h(
      "div",
      { class: "list" },
      filters.length > 0 &&
        h(
          "div",
          { class: "filters" },
          filters.map((filter) => filter.element),
        ),
      this.rows,
    );
    this.table.element.hidden = this.pager.element.hidden = true;
    this.table.sorted(this.sort, this.order);
    this.refresh = loading(this.rows, (request) => this.load(request), this.signal);
    this.polling = every(this.interval, () => this.refresh(), this.signal);
  }

  get filterValues() {
    return Object.fromEntries(this.filters.map((filter) => [filter.name, filter.value]));
  }

  async load(request) {
    const query = {
      ...this.fixed,
      ...this.filterValues,
      offset: (this.page - 1) * this.size,
      limit: this.size,
      ...(this.sort && { sort: this.sort, order: this.order }),
    };
    this.show(await get(this.path, query, request));
  }

  show(answer) {
    const { items, total } = answer;
    this.total = total;
    if (!items.length && total > 0 && this.page > 1) {
      // the items of the last page have been removed
      this.openPage(Math.ceil(total / this.size));
      return;
    }
    this.table.update(items);
    this.pager.update({ page: this.page, size: this.size, total });
    this.table.element.hidden = total === 0;
    const filtered = Object.values(this.filterValues).some(Boolean);
    const state = total > 0 ? "" : `none ${filtered}`;
    if (state !== this.emptyReason) {
      this.emptyReason = state;
      replaceContent(this.emptyState, state && this.emptyContent(filtered));
      this.emptyState.hidden = !state;
    }
    if (this.rows.firstChild !== this.content) replaceContent(this.rows, this.content);
    this.onUpdate?.(answer);
  }

  storeState() {
    if (this.inUrl === false) return;
    const isDefaultOrder = this.sort === this.defaults.sort && this.order === this.defaults.order;
    storeQuery({
      ...this.filterValues,
      page: this.page > 1 ? this.page : "",
      sort: isDefaultOrder ? "" : this.sort,
      order: isDefaultOrder ? "" : this.order,
    });
  }

  async applyFilters() {
    this.page = 1;
    this.storeState();
    await this.refresh();
    announce(this.total === 1 ? "1 found" : `${this.total} found`);
  }

  async openPage(page) {
    this.page = page;
    this.storeState();
    await this.refresh();
    announce(`Page ${page}`);
  }

  async sortBy({ key, label, first = "asc" }) {
    if (this.sort === key) this.order = this.order === "asc" ? "desc" : "asc";
    else [this.sort, this.order] = [key, first];
    this.page = 1;
    this.table.sorted(this.sort, this.order);
    this.storeState();
    await this.refresh();
    announce(`Sorted by ${label}, ${this.order === "asc" ? "ascending" : "descending"}`);
  }
}

class Filter {
  constructor(name, label, control, grow) {
    this.name = name;
    this.control = control;
    control.id = `filter-${name}`;
    this.element = h(
      "div",
      { class: `field ${grow ? "grow" : ""}` },
      h("label", { for: control.id }, label),
      control,
    );
  }

  get value() {
    return this.control.value.trim();
  }

  bind(value, onChange) {
    this.control.value = value;
    let timer = 0;
    this.control.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(onChange, this.control.tagName === "SELECT" ? 0 : INPUT_DELAY_MS);
    });
  }
}

/** A filter by text. */
export function textFilter(name, label, placeholder = "") {
  const control = h("input", {
    type: "search",
    placeholder,
    autocomplete: "off",
    spellcheck: "false",
  });
  return new Filter(name, label, control, true);
}

/** A filter by one of some values; `options` are [value, label]. */
export function choiceFilter(name, label, options) {
  const control = h(
    "select",
    null,
    options.map(([value, text]) => h("option", { value }, text)),
  );
  return new Filter(name, label, control, false);
}
