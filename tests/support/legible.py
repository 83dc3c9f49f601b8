"""Finds text of a page in a browser that somebody can't read: cut off, beside the window, over other text, or pale."""

from typing import Any

LEAST_CONTRAST = 4.5
"""WCAG 2.2, 1.4.3 (AA), for text of any size."""
LEAST_PX = 7.5
"""Minimum size of letters, as they appear."""

_FAULTS = r"""
([least, smallest]) => {
  const faults = [], lines = [], width = document.documentElement.clientWidth;
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {  // of any CSS color
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const luminance = ([r, g, b]) => [r, g, b].map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, n) => sum + one * [0.2126, 0.7152, 0.0722][n], 0);
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const paper = (element) => {
    const chain = [];
    for (let one = element; one; one = one.parentElement) chain.push(rgba(getComputedStyle(one).backgroundColor));
    return chain.reverse().reduce((under, colour) => over(colour, under),
      rgba(getComputedStyle(document.documentElement).colorScheme.includes("dark")
        && matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#fff"));
  };
  const scrolledAway = (element, box) => {
    for (let one = element; one && one !== document.body; one = one.parentElement) {
      const around = one.getBoundingClientRect();
      if (["auto", "scroll"].includes(getComputedStyle(one).overflowY)
          && (box.top < around.top - 1 || box.bottom > around.bottom + 1)) return true;
    }
    return false;
  };
  for (const one of document.querySelectorAll("details")) one.open = true;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const text = node.textContent.trim(), element = node.parentElement, style = getComputedStyle(element);
    if (!text || style.visibility === "hidden" || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const drawing = element.closest("svg");
    const boxes = (drawing ? [element.getBoundingClientRect()] : [...range.getClientRects()])
      .filter((box) => box.width > 1 && box.height > 1);
    if (!boxes.length) continue;
    const say = (what) => faults.push(`${what}: ${text.slice(0, 60)}`);
    for (const box of boxes) {
      if (box.left < -0.5 || box.right > width + 0.5) say(`beside the window (${Math.round(box.right)} of ${width})`);
      for (let one = element; one && one !== document.body; one = one.parentElement) {
        const { overflowX } = getComputedStyle(one), around = one.getBoundingClientRect();
        if ((overflowX !== "visible" || one.tagName === "svg")
            && (box.left < around.left - 1 || box.right > around.right + 1)) say(`cut off by <${one.tagName}>`);
      }
      if (!scrolledAway(element, box)) lines.push({ box, text, element });
    }
    for (let one = element; one; one = one.parentElement) {
      const { opacity, filter } = getComputedStyle(one);
      if (opacity !== "1" || filter !== "none") say("faded or filtered");
    }
    const under = paper(element), ink = over(rgba(drawing ? style.fill : style.color), under);
    if (contrast(ink, under) < least) say(`contrast ${contrast(ink, under).toFixed(2)}`);
    const scale = drawing ? element.getScreenCTM().a : 1;
    if (parseFloat(style.fontSize) * scale < smallest) say(`${(parseFloat(style.fontSize) * scale).toFixed(1)} px`);
  }
  for (let i = 0; i < lines.length; i++) for (let j = i + 1; j < lines.length; j++) {
    const a = lines[i].box, b = lines[j].box;
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 2 && high > 0.4 * Math.min(a.height, b.height) && lines[i].element !== lines[j].element)
      faults.push(`over each other: ${lines[i].text.slice(0, 40)} | ${lines[j].text.slice(0, 40)}`);
  }
  const whole = document.scrollingElement.scrollWidth;
  if (whole > width) faults.push(`the page is ${whole} px wide`);
  return [faults, lines.length];
}
"""


def illegible(page: Any) -> list[str]:
    """What can't be read in the page with all its details open, a sentence each."""
    faults, lines = page.evaluate(_FAULTS, [LEAST_CONTRAST, LEAST_PX])
    assert lines, "there is no text"
    return faults
