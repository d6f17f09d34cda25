"use strict";
(function () {
  var tip = document.getElementById("tip");

  function place(x, y) {
    var width = tip.offsetWidth, height = tip.offsetHeight;
    tip.style.left = Math.max(6, x + width + 20 > innerWidth ? x - width - 14 : x + 14) + "px";
    tip.style.top = Math.max(6, y + height + 20 > innerHeight ? y - height - 14 : y + 14) + "px";
  }

  function hide(chart) {
    tip.hidden = true;
    var on = chart.querySelector(".on");
    if (on) on.classList.remove("on");
  }

  function show(chart, spot, x, y) {
    hide(chart);
    spot.classList.add("on");
    tip.textContent = spot.dataset.says;
    tip.hidden = false;
    place(x, y);
  }

  document.querySelectorAll("svg.chart").forEach(function (chart) {
    var spots = Array.prototype.slice.call(chart.querySelectorAll(".spots rect"));
    // The browser's own tip would lie over ours.
    spots.forEach(function (spot) {
      var title = spot.querySelector("title");
      spot.dataset.says = title.textContent;
      title.remove();
    });
    chart.addEventListener("pointermove", function (event) {
      if (event.target.dataset.says) show(chart, event.target, event.clientX, event.clientY);
      else hide(chart);
    });
    chart.addEventListener("pointerdown", function (event) {
      if (event.target.dataset.says) show(chart, event.target, event.clientX, event.clientY);
    });
    chart.addEventListener("pointerleave", function () { hide(chart); });
    chart.addEventListener("blur", function () { hide(chart); });
    chart.addEventListener("keydown", function (event) {
      var step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide(chart);
      if (!step || !spots.length) return;
      event.preventDefault();
      var at = spots.indexOf(chart.querySelector(".on"));
      var next = at < 0 ? (step > 0 ? 0 : spots.length - 1) : at + step;
      var spot = spots[Math.min(spots.length - 1, Math.max(0, next))];
      var box = spot.getBoundingClientRect();
      show(chart, spot, box.right, box.top);
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
