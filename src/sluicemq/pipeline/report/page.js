"use strict";
(function () {
  var tip = document.getElementById("tip");

  function place(x, y) {
    var width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = Math.max(6, x + width + 20 > innerWidth ? x - width - 14 : x + 14) + "px";
    tip.style.top = Math.max(6, y + height + 20 > innerHeight ? y - height - 14 : y + 14) + "px";
  }

  // The row of the chart's table at a place, as a tooltip, and a cursor over its period of time.
  document.querySelectorAll(".chart").forEach(function (chart) {
    var table = chart.parentNode.querySelector("table");
    var heads = table.tHead.rows[0].cells, rows = table.tBodies[0].rows;
    var start = Number(chart.dataset.start), length = Number(chart.dataset.end) - start;
    var count = rows.length, at = -1;
    var cursor = chart.appendChild(document.createElement("span"));
    cursor.className = "cursor";
    cursor.hidden = true;

    function show(row, x, y) {
      at = row;
      tip.hidden = cursor.hidden = at < 0;
      if (at < 0) return;
      tip.textContent = Array.prototype.map.call(rows[at].cells, function (cell, index) {
        return (index ? heads[index].textContent + ": " : "") + cell.textContent;
      }).join("\n");
      cursor.style.left = 100 * (start + length * at / count) + "%";
      cursor.style.width = 100 * length / count + "%";
      var box = cursor.getBoundingClientRect();
      place(x === undefined ? box.right : x, y === undefined ? box.top : y);
    }

    function point(event) {
      var box = chart.getBoundingClientRect();
      var row = Math.floor(((event.clientX - box.left) / box.width - start) / length * count);
      show(row < 0 || row >= count ? -1 : row, event.clientX, event.clientY);
    }

    function hide() { show(-1); }

    chart.addEventListener("pointermove", point);
    chart.addEventListener("pointerdown", point);
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", function (event) {
      var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      show(Math.min(count - 1, Math.max(0, at < 0 && step < 0 ? count - 1 : at + step)));
    });
  });

  document.querySelectorAll("table.sortable").forEach(function (table) {
    var body = table.tBodies[0];
    table.querySelectorAll("th[data-sort]").forEach(function (head) {
      var column = head.cellIndex;
      // Not a <button>: browsers leave those out of table heads that are repeated on paper.
      var button = document.createElement("span");
      button.setAttribute("role", "button");
      button.tabIndex = 0;
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("keydown", function (event) {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        button.click();
      });
      button.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") !== "descending";
        table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        Array.prototype.slice.call(body.rows)
          .sort(function (a, b) {
            var difference = Number(a.cells[column].dataset.value) - Number(b.cells[column].dataset.value);
            return down ? -difference : difference;
          })
          .forEach(function (row) { body.appendChild(row); });
      });
    });
  });
})();
