"""XMP packet of a file: IPTC's mark of generated images, and the recipe.

All formats store packets uncompressed, so readers find them by searching for their first bytes.
This module and the playground do that.

Source: XMP Specification Part 1 (ISO 16684-1) and Part 3, 2.1 (packet scanning); IPTC Photo
Metadata Standard 2023.2, Digital Source Type.
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.sax.saxutils import escape

from service.recipes.recipe import Recipe

NAMESPACE = "urn:atelier:recipe:1:"
"""XML namespace of `recipe` and `parameters`."""
IPTC = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
SOURCES = "http://cv.iptc.org/newscodes/digitalsourcetype/"
MADE = f"{SOURCES}trainedAlgorithmicMedia"
"""IPTC source type of generated media."""
EDITED = f"{SOURCES}compositeWithTrainedAlgorithmicMedia"
"""IPTC source type of an image with a generated part."""

MAX_BYTES = 2**22
"""Maximum length of a packet that is read. Some recipes' prompts have 10,000 characters each."""

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
    """Return the IPTC digital source type of an image: generated, or edited."""
    return EDITED if "mask_image" in recipe.images else MADE


def packet(recipe: Recipe, *, is_whole: bool = True, parameters: str | None = None) -> bytes:
    """Build the XMP packet of an output file.

    Args:
        is_whole: False: only the mark, if there is no space for a recipe.
        parameters: AUTOMATIC1111's text, for formats without another field for it.
    """
    properties = {
        "Iptc4xmpExt:DigitalSourceType": source_of(recipe),
        "xmp:CreatorTool": recipe.generator,
        "atelier:recipe": recipe.to_json() if is_whole else None,
        "atelier:parameters": parameters,
    }
    lines = (f"<{name}>{_xml(text)}</{name}>" for name, text in properties.items() if text)
    return _PACKET.format(ours=NAMESPACE, iptc=IPTC, properties="\n".join(lines)).encode()


def _xml(text: str) -> str:
    return escape(text.translate(_NOT_XML))


def find(data: bytes, name: str) -> str | None:
    """Read one of our XMP properties from a file's packet; None if absent.

    Raises: ValueError: unreadable packet.
    """
    xmp = packet_in(data)
    return None if xmp is None else property_of(xmp, name)


def packet_in(data: bytes) -> bytes | None:
    """Extract the XMP packet from a file; None if absent. Raises: ValueError: too long."""
    start = data.find(_BEGIN)
    end = data.find(_END, start)
    if start < 0 or end < 0:
        return None
    if end - start > MAX_BYTES:
        raise ValueError(f"its XMP packet has more than {MAX_BYTES} bytes")
    return data[start : end + len(_END)]


def property_of(packet: bytes, name: str) -> str | None:
    """Read one of our properties from an XMP packet; None if absent. Raises: ValueError."""
    try:
        root = ElementTree.fromstring(packet)
    except ElementTree.ParseError:
        raise ValueError("its XMP packet is damaged") from None
    key = f"{{{NAMESPACE}}}{name}"
    texts = (node.text if node.tag == key else node.get(key) for node in root.iter())
    return next((text for text in texts if text), None)
