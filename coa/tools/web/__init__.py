"""The tools web_search and crawl_page, and a server of a small web for them."""
