"""A step as one HTML file that needs no server: `lazytpu-show html`, `lazytpu.inspection.html.page.page`."""
