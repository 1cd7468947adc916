"use strict";
(() => {
  const data = JSON.parse(document.getElementById("widget-data").textContent);
  const range = document.getElementById("threshold");
  const exact = document.getElementById("threshold-number");
  const said = document.getElementById("threshold-said");
  const last = Number(range.max);
  const edge = (index) => data.low + index * data.step;

  // Counts at or above each edge, so that a move of the slider costs a look-up.
  const tails = (counts) => {
    const sums = new Array(counts.length + 1).fill(0);
    for (let i = counts.length - 1; i >= 0; i -= 1) sums[i] = sums[i + 1] + counts[i];
    return sums;
  };
  const rows = [];
  data.groupings.forEach((grouping, g) => grouping.groups.forEach((group, i) => {
    const row = document.getElementById(`slider-${g}-${i}`);
    rows.push({
      cell: (name) => row.querySelector(`[data-cell="${name}"]`),
      mated: tails(group.genuine),
      nonMated: tails(group.impostor),
    });
  }));

  const mark = (errors) => (errors >= 30 ? "●" : errors >= 3 ? "◐" : "○");
  const whole = (count) => count.toLocaleString("en-US");
  const rate = (errors, total) => (total ? String(Number((errors / total).toPrecision(3))) : "–");
  // An FMR spans orders of magnitude, so its bar goes from one in a million to all.
  const lengths = {
    fmr: (share) => (share ? Math.max(0, 1 + Math.log10(share) / 6) : 0),
    fnmr: (share) => share,
  };
  const put = (row, name, errors, total) => {
    row.cell(name).textContent = rate(errors, total);
    row.cell(`${name}-counts`).textContent = `${mark(errors)} ${whole(errors)}/${whole(total)}`;
    row.cell(`${name}-bar`).style.width = `${total ? 100 * lengths[name](errors / total) : 0}%`;
  };

  const show = (index, wanted) => {
    const threshold = edge(index);
    range.value = index;
    range.setAttribute("aria-valuetext", threshold.toFixed(4));
    exact.value = threshold;
    rows.forEach((row) => {
      const mated = row.mated[0];
      put(row, "fmr", row.nonMated[index], row.nonMated[0]);
      put(row, "fnmr", mated - row.mated[index], mated);
    });
    said.textContent = wanted === threshold
      ? `t = ${threshold}: counts are exact at this edge of the bins.`
      : `t = ${Number(wanted.toPrecision(6))} lies within a bin; shown is its nearest edge ${threshold}, so rates are approximate to one bin.`;
  };
  const ask = (threshold) => {
    if (!Number.isFinite(threshold)) return;
    const index = Math.round((threshold - data.low) / data.step);
    show(Math.min(last, Math.max(0, index)), threshold);
  };

  range.addEventListener("input", () => show(Number(range.value), edge(Number(range.value))));
  exact.addEventListener("change", () => ask(exact.valueAsNumber));
  document.querySelectorAll("[data-threshold]").forEach((button) => {
    button.addEventListener("click", () => ask(Number(button.dataset.threshold)));
  });
  const fromAddress = () => {
    const match = /^#t=(-?[0-9.]+)$/.exec(location.hash);
    ask(match ? Number(match[1]) : data.start);
  };
  window.addEventListener("hashchange", () => {
    if (location.hash.startsWith("#t=")) fromAddress();
  });
  fromAddress();
  document.getElementById("slider").hidden = false;
})();
