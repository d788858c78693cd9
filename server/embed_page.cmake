# cmake -DPAGE=index.html -DOUT=page_data.cc -P embed_page.cmake: the page as an array, so that the program needs no file at run time.
file(READ ${PAGE} bytes HEX)
file(SIZE ${PAGE} size)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUT} "namespace unpack::server {\nextern const unsigned char kPage[];\nextern const unsigned long kPageSize;\nconst unsigned char kPage[] = {\n${bytes}};\nconst unsigned long kPageSize = ${size};\n}\n")
