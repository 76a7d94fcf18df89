"""What a chart shows, read from its canvas, its table and the words under the pointer."""

import asyncio

from playwright.async_api import Locator, Page, expect

INK = """([selector, name]) => {
  const canvas = document.querySelector(selector), probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const wanted = getComputedStyle(probe).color.match(/[0-9]+/g).map(Number);
  probe.remove();
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  const near = (i) => data[i + 3] > 200 && wanted.every((value, channel) => Math.abs(value - data[i + channel]) < 24);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) if (near(i)) found += 1;
  return found;
}"""


async def ink(page: Page, chart: str, colour: str) -> int:
    """Pixels of a chart that have a colour of the theme, such as `--accent`."""
    await page.locator(f"#{chart} canvas").wait_for(state="attached")
    found: int = await page.evaluate(INK, [f"#{chart} canvas", colour])
    return found


async def is_drawn(page: Page, chart: str, colour: str, least: int) -> bool:
    """Whether so many pixels have the colour, once the chart has been drawn: it is drawn anew as figures come."""
    for _ in range(50):
        if await ink(page, chart, colour) >= least:
            return True
        await asyncio.sleep(0.2)
    return False


async def table_of(page: Page, chart: str) -> Locator:
    """Rows of the table behind a chart, which is opened."""
    details = page.locator(f"#{chart}-values")
    if await details.get_attribute("open") is None:
        await details.locator("summary").click()
    rows = details.locator("tbody tr")
    await expect(rows.first).to_be_visible()
    return rows


async def point_at(page: Page, chart: str, share: float) -> Locator:
    """Move the pointer to a share of a chart's width; the words that its legend has then, the time first."""
    over = page.locator(f"#{chart} .u-over")
    box = await over.bounding_box()
    assert box is not None
    await over.hover(position={"x": share * (box["width"] - 1), "y": box["height"] / 2})
    return page.locator(f"#{chart} .u-legend .u-value")
