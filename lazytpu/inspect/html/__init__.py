"""A step as one HTML file that needs no server: `lazytpu-show html`, `lazytpu.inspect.html.page.page`."""
