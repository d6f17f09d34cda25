// Tables with live updates. Rows are identified by a key, and only cells with changed content are
// replaced, so that focus and selections stay and screen readers do not repeat unchanged text.

import { focusControl, h, replaceControls, screenReaderText } from "./dom.js";
import { count } from "./format.js";

/**
 * columns: {key, label, show(item, latest), fingerprint?(item), sort?: true, first?: "asc"|"desc", number?,
 *           wide?, rank?: 2|3, head?: true, hidden?: true}
 *
 * `show` returns a text or a node; `fingerprint` a text that changes whenever the content does (by
 * default the content itself). Listeners of the content call `latest()` for the item as last updated. Columns of `rank` 2 are hidden on narrow pages, those of `rank` 3 also
 * on medium ones. The cell of the `head` column names the row. A `hidden` label is for screen readers
 * only. With `stack`, each row is a card on narrow pages; the elements have explicit roles, because
 * browsers derive the implicit ones from the styles.
 */
export class Table {
  constructor({ caption, columns, key, onSort = null, stack = false }) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.onSort = onSort;
    this.body = h("tbody", { role: "rowgroup" });
    this.headers = columns.map((column) => this.header(column));
    this.element = h(
      "div",
      { class: stack ? "table stack" : "table" },
      h(
        "table",
        { role: "table" },
        h("caption", { class: "visually-hidden" }, caption),
        h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.headers)),
        this.body,
      ),
    );
  }

  header(column) {
    const attributes = { scope: "col", role: "columnheader", class: classes(column) };
    if (!column.sort) {
      return h("th", attributes, column.hidden ? screenReaderText(column.label) : column.label);
    }
    const button = h(
      "button",
      { type: "button", class: "sort", onclick: () => this.onSort(column) },
      column.label,
    );
    return h("th", attributes, button);
  }

  /** Mark the column by which the rows are sorted. */
  sorted(key, order) {
    this.columns.forEach((column, index) => {
      if (column.key === key) {
        this.headers[index].setAttribute("aria-sort", order === "asc" ? "ascending" : "descending");
      } else this.headers[index].removeAttribute("aria-sort");
    });
  }

  /** Show these items, in that order. */
  update(items) {
    const previous = this.rows;
    const focusedRow = [...this.body.children].indexOf(document.activeElement?.closest("tr"));
    this.rows = new Map();
    const elements = items.map((item) => {
      const key = this.key(item);
      const row = previous.get(key) ?? this.row();
      this.rows.set(key, row);
      this.refresh(row, item);
      return row.element;
    });
    const focused = document.activeElement;
    const shown = this.body.children;
    elements.forEach((element, index) => {
      if (shown[index] !== element) this.body.insertBefore(element, shown[index] ?? null);
    });
    while (shown.length > elements.length) shown[shown.length - 1].remove();
    // moving a row removes its focus
    if (focused !== document.activeElement) {
      if (this.body.contains(focused)) focused.focus({ preventScroll: true });
      else if (focusedRow >= 0 && elements.length) focusControl(elements[Math.min(focusedRow, elements.length - 1)]);
    }
  }

  row() {
    const cells = this.columns.map((column) => {
      const shared = { class: classes(column), "data-label": column.hidden ? null : column.label };
      return column.head
        ? h("th", { ...shared, scope: "row", role: "rowheader" })
        : h("td", { ...shared, role: "cell" });
    });
    return { element: h("tr", { role: "row" }, cells), cells, texts: [], item: null };
  }

  refresh(row, item) {
    row.item = item;
    this.columns.forEach((column, index) => {
      const text = column.fingerprint ? column.fingerprint(item) : String(column.show(item));
      if (row.texts[index] === text) return;
      row.texts[index] = text;
      replaceControls(row.cells[index], column.fingerprint ? column.show(item, () => row.item) : text);
    });
  }
}

function classes({ number, rank, wide, head }) {
  const names = [number && "number", rank && `rank-${rank}`, wide && "wide", head && "row-name"];
  return names.filter(Boolean).join(" ") || null;
}

/** Buttons for the pages of a list of that name; `go(page)` is called with the selected page. */
export class Pager {
  constructor(name, go) {
    this.text = h("span", { class: "pager-text" });
    this.previous = h("button", { type: "button", onclick: () => go(this.page - 1) }, "Previous");
    this.next = h("button", { type: "button", onclick: () => go(this.page + 1) }, "Next");
    this.element = h(
      "nav",
      { class: "pager", "aria-label": `Pages: ${name}` },
      this.text,
      this.previous,
      this.next,
    );
  }

  /** Show the current page; the buttons are hidden if there is only one. */
  update({ page, size, total }) {
    this.page = page;
    const last = Math.max(1, Math.ceil(total / size));
    const first = (page - 1) * size + 1;
    this.text.textContent = total
      ? `${count(first)} to ${count(Math.min(total, page * size))} of ${count(total)}`
      : "";
    this.element.hidden = total === 0;
    this.previous.hidden = this.next.hidden = last === 1;
    this.previous.disabled = page <= 1;
    this.next.disabled = page >= last;
  }
}
