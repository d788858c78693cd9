# cmake -DPAGE=index.html -DOUT=page_data.cc -P embed_page.cmake: the page as an array, so that the
# program needs no file at run time.
file(READ ${PAGE} bytes HEX)
file(SIZE ${PAGE} size)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REPEAT . 80 line)
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "namespace unpack::server {\n\
extern const unsigned char kPage[];\n\
extern const unsigned long kPageSize;\n\
const unsigned char kPage[] = {\n${bytes}};\n\
const unsigned long kPageSize = ${size};\n}\n")
