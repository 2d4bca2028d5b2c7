// SPDX-License-Identifier: GPL-2.0 OR MIT
// Runs in a page and returns what a reader could not read there, as JSON.
(() => {
  const CONTRAST = 4.5; // WCAG 2.2, level AA, for text of ordinary size
  const SMALLEST = 9; // pixels
  const numbers = colour => (colour.match(/[\d.]+/g) || []).map(Number);
  const part = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const opaque = colour => colour !== 'transparent' && numbers(colour)[3] !== 0;
  const background = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (opaque(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const contrast = (text, behind) => {
    const [low, high] = [luminance(numbers(text)), luminance(numbers(behind))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const scrolls = element => {
    for (let at = element; at; at = at.parentElement) {
      if (['auto', 'scroll'].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  const findings = [];
  let texts = 0;
  for (const element of document.body.querySelectorAll('*')) {
    const words = [...element.childNodes].filter(node => node.nodeType === Node.TEXT_NODE).map(node => node.data).join(' ').trim();
    // A title is a hint, which the browser shows in its own colours. Hidden texts have no rectangle.
    if (!words || element.tagName.toLowerCase() === 'title' || !element.getClientRects().length) continue;
    texts += 1;
    const name = JSON.stringify(words.slice(0, 40));
    const style = getComputedStyle(element);
    const drawing = element.ownerSVGElement;
    const [text, behind] = [drawing ? style.fill : style.color, background(element)];
    const ratio = contrast(text, behind);
    if (!(ratio >= CONTRAST)) findings.push(`${name} has a contrast of ${ratio.toFixed(1)}: ${text} on ${behind}`);
    const box = element.getBoundingClientRect();
    if (box.width < 1 || box.height < 1) findings.push(`${name} has no size`);
    if (parseFloat(style.fontSize) < SMALLEST) findings.push(`${name} is ${style.fontSize} high`);
    if (box.right > innerWidth + 1 && !scrolls(element)) findings.push(`${name} ends at ${Math.round(box.right)} px`);
    if (drawing) {
      const room = drawing.getBoundingClientRect();
      const inside = box.left >= room.left - 1 && box.right <= room.right + 1 && box.top >= room.top - 1 && box.bottom <= room.bottom + 1;
      if (!inside) findings.push(`${name} is cut off by its plot`);
    }
  }
  const width = document.scrollingElement.scrollWidth;
  if (width > innerWidth) findings.push(`the page is ${width} px wide`);
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  return JSON.stringify({ dark, width: innerWidth, texts, findings });
})()
