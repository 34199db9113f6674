"""XMP packet of a file: IPTC's mark of made images, and the recipe.

Packets lie in files as they are, of every format, so that they can be found by searching for their
first bytes: that is how they are read here and in the playground.
Source: XMP Specification Part 1 (ISO 16684-1) and Part 3, 2.1 (packet scanning); IPTC Photo
Metadata Standard 2023.2, Digital Source Type.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.sax.saxutils import escape

from service.recipes.recipe import Recipe

OURS = "urn:atelier:recipe:1:"
"""Namespace of `recipe` and `parameters`."""
IPTC = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
SOURCES = "http://cv.iptc.org/newscodes/digitalsourcetype/"
MADE = f"{SOURCES}trainedAlgorithmicMedia"
"""Source of what a model made."""
REDRAWN = f"{SOURCES}compositeWithTrainedAlgorithmicMedia"
"""Source of an image of which a model made a part."""

MAX_BYTES = 2**22
"""Maximum length of a packet that is read: some recipes' prompts have 10,000 characters each."""

_BEGIN, _END = b"<x:xmpmeta", b"</x:xmpmeta>"
_PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description rdf:about="" xmlns:atelier="{ours}" xmlns:Iptc4xmpExt="{iptc}"
 xmlns:xmp="http://ns.adobe.com/xap/1.0/">
{properties}
</rdf:Description>
</rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>"""
_NOT_XML = str.maketrans("\ufffe\uffff", "\ufffd\ufffd")


def source_of(recipe: Recipe) -> str:
    """Return IPTC's word for where an image comes from."""
    return REDRAWN if "mask_image" in recipe.images else MADE


def packet(recipe: Recipe, *, is_whole: bool = True, parameters: str | None = None) -> bytes:
    """Return the packet of a file.

    Args:
        is_whole: False: with the mark alone, where there is no room for a recipe.
        parameters: text of AUTOMATIC1111, for formats that have no place of their own for it.
    """
    properties = {
        "Iptc4xmpExt:DigitalSourceType": source_of(recipe),
        "xmp:CreatorTool": recipe.generator,
        "atelier:recipe": recipe.to_json() if is_whole else None,
        "atelier:parameters": parameters,
    }
    lines = (f"<{name}>{_xml(text)}</{name}>" for name, text in properties.items() if text)
    return _PACKET.format(ours=OURS, iptc=IPTC, properties="\n".join(lines)).encode()


def _xml(text: str) -> str:
    return escape(text.translate(_NOT_XML))


def find(data: bytes, name: str) -> str | None:
    """Return a property of ours in a file's packet; None: it has none.

    Raises: ValueError: there is a packet, and it cannot be read.
    """
    found = packet_in(data)
    return None if found is None else property_of(found, name)


def packet_in(data: bytes) -> bytes | None:
    """Return the packet in a file; None: it has none. Raises: ValueError: it is too long."""
    start = data.find(_BEGIN)
    end = data.find(_END, start)
    if start < 0 or end < 0:
        return None
    if end - start > MAX_BYTES:
        raise ValueError(f"its XMP packet has more than {MAX_BYTES} bytes")
    return data[start : end + len(_END)]


def property_of(packet: bytes, name: str) -> str | None:
    """Return a property of ours in a packet; None: it has none. Raises: ValueError."""
    try:
        root = ElementTree.fromstring(packet)
    except ElementTree.ParseError as error:
        raise ValueError(f"its XMP packet is damaged: {error}") from None
    key = f"{{{OURS}}}{name}"
    found = (node.text if node.tag == key else node.get(key) for node in root.iter())
    return next((text for text in found if text), None)
