#include "model/safetensors.h"

#include <cstring>

#include "model/checkpoint.h"
#include "unit/weights_files.h"

namespace unpack {
namespace {

using test::expect_mentions;
using test::input_error;
using test::safetensors_bytes;
using test::TempFolder;

std::vector<model::FileTensor> parse(const std::string& file) {
  return model::parse_safetensors(std::as_bytes(std::span(file)), "weights.safetensors");
}

std::string parse_error(const std::string& header, const std::string& data) {
  return input_error([&] { parse(safetensors_bytes(header, data)); });
}

TEST(Safetensors, ReadsNamesTypesShapesAndBytes) {
  const std::string file = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]}})",
      std::string("\0\0\x80\x3f\0\0\0\xc0\x80\x3f", 10));
  const auto tensors = parse(file);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].stored.name, "a");
  EXPECT_EQ(tensors[0].stored.shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(tensor::load_element(tensors[0].stored.data, DType::f32, 0), 1.0);
  EXPECT_EQ(tensor::load_element(tensors[0].stored.data, DType::f32, 1), -2.0);
  EXPECT_EQ(tensors[1].stored.dtype, DType::bf16);
  EXPECT_EQ(tensor::load_element(tensors[1].stored.data, DType::bf16, 0), 1.0);
}

TEST(Safetensors, ToleratesUnalignedOffsets) {
  // The header is of odd length, the second tensor begins at an odd offset.
  std::string header =
      R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"a":{"dtype":"F32","shape":[1],)"
      R"("data_offsets":[3,7]}})";
  if (header.size() % 2 == 0) header += ' ';
  const std::string file = safetensors_bytes(header, std::string("xyz\0\0\x80\x3f", 7));
  const auto tensors = parse(file);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensor::load_element(tensors[0].stored.data, DType::f32, 0), 1.0);
}

TEST(Safetensors, RefusesBytesThatBelongToNoTensor) {
  const std::string a = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  expect_mentions(parse_error(a, "12345"), {"1 bytes behind the last tensor"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", "123456"),
      {"2 bytes in front of tensor 'a'"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32",)"
                  R"("shape":[1],"data_offsets":[5,9]}})",
                  "123456789"),
      {"1 bytes in front of tensor 'b'"});
  expect_mentions(parse_error(a + "\t", "1234"), {"padded by spaces"});
  expect_mentions(parse_error(" " + a, "1234"), {"first byte"});
  expect_mentions(parse_error(a + std::string(1, '\0'), "1234"), {"not valid JSON"});
  expect_mentions(parse_error(R"({"__metadata__":{"a":1}})", ""), {"__metadata__"});
  EXPECT_EQ(parse(safetensors_bytes(a + "   ", "1234")).size(), 1u);
}

TEST(Safetensors, KeepsTensorsOfTypesThatTheMathsDoesNotTake) {
  const auto tensors = parse(safetensors_bytes(
      R"({"mask":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]},"odd":{"dtype":"F4",)"
      R"("shape":[9],"data_offsets":[2,3]}})",
      std::string("\1\0\7", 3)));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_FALSE(tensors[0].readable);
  EXPECT_EQ(tensors[0].dtype_name, "BOOL");
  EXPECT_FALSE(tensors[1].readable);
}

TEST(Safetensors, RefusesAFileThatIsTooShort) {
  expect_mentions(input_error([] { parse("1234567"); }), {"weights.safetensors", "7 bytes"});
  expect_mentions(input_error([] { parse(""); }), {"0 bytes"});
}

TEST(Safetensors, RefusesAHeaderOfAbsurdSize) {
  std::string file = safetensors_bytes("{}", "");
  file[0] = 3;  // one more than there is
  expect_mentions(input_error([&] { parse(file); }), {"header of 3 bytes", "file of 10"});
  for (int i = 0; i < 8; ++i) file[i] = '\xff';
  expect_mentions(input_error([&] { parse(file); }), {"18446744073709551615"});
}

TEST(Safetensors, RefusesAHeaderThatIsNoJsonObject) {
  expect_mentions(parse_error("{\"a\": ", ""), {"weights.safetensors", "not valid JSON"});
  expect_mentions(parse_error("[1]", ""), {"no JSON object"});
  expect_mentions(parse_error(std::string(100, '[') + std::string(100, ']'), ""), {"nested"});
  expect_mentions(parse_error("{\"a\xff\": 1}", ""), {"not valid JSON"});
  expect_mentions(parse_error("{\"a\": 1e999}", ""), {"not valid JSON"});
}

TEST(Safetensors, RefusesATensorThatOccursTwice) {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  expect_mentions(parse_error("{\"a\":" + entry + ",\"a\":" + entry + "}", "1234"),
                  {"'a'", "twice"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})",
                  "1234"),
      {"'dtype'", "twice"});
}

TEST(Safetensors, RefusesOffsetsThatOverlap) {
  const std::string error = parse_error(
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],)"
      R"("data_offsets":[3,7]}})",
      "12345678");
  expect_mentions(error, {"'a'", "'b'", "overlap", "0..4", "3..7"});
}

TEST(Safetensors, RefusesOffsetsOutsideTheFile) {
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234567"),
      {"'a'", "leave the file", "7 bytes"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", "12345678"),
      {"leave the file"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", "12345678"),
      {"leave the file"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})",
                  "12345678"),
      {"leave the file"});
}

TEST(Safetensors, RefusesAShapeThatDoesNotFitTheBytes) {
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F16","shape":[3],"data_offsets":[0,8]}})", "12345678"),
      {"'a'", "[3]", "F16", "8 bytes"});
  // 2^62 times 4 bytes wraps around to 0; so does 2^32 times 2^32.
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})",
                  ""),
      {"does not fit"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  ""),
      {"does not fit"});
  expect_mentions(
      parse_error(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})",
                  ""),
      {"does not fit"});
}

TEST(Safetensors, RefusesIllTypedEntries) {
  for (const char* entry :
       {R"(7)", R"({"shape":[1],"data_offsets":[0,4]})", R"({"dtype":"F32","data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1]})", R"({"dtype":5,"shape":[1],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":4,"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1.0],"data_offsets":[0,4]})",
        R"({"dtype":"F32","shape":[1],"data_offsets":[0]})",
        R"({"dtype":"F32","shape":[1],"data_offsets":["0","4"]})"}) {
    expect_mentions(parse_error(std::string("{\"the.tensor\":") + entry + "}", "1234"),
                    {"weights.safetensors", "'the.tensor'"});
  }
}

TEST(Safetensors, NamesInMessagesStayOnOneLine) {
  expect_mentions(parse_error("{\"bad\\nname\": 1}", ""), {"bad\\x0aname"});
  EXPECT_LT(parse_error("{\"" + std::string(100000, 'x') + "\": 1}", "").size(), 400u);
}

TEST(Safetensors, MappedFileReadsWhatItMaps) {
  const TempFolder folder;
  const model::MappedFile file(folder.write("x", "0123456789"));
  ASSERT_EQ(file.bytes().size(), 10u);
  std::byte read[4];
  file.read(file.bytes().data() + 3, 4, read);
  EXPECT_EQ(std::memcmp(read, "3456", 4), 0);
  expect_mentions(input_error([&] { model::MappedFile missing(folder.path() / "nothing"); }),
                  {"nothing", "cannot open"});
  expect_mentions(input_error([&] { model::MappedFile directory(folder.path()); }), {"plain file"});
  EXPECT_TRUE(model::MappedFile(folder.write("empty", "")).bytes().empty());
}

TEST(Safetensors, ReleasedPagesComeBackFromTheFile) {
  const TempFolder folder;
  std::string content(100000, 'a');
  content[50000] = 'b';
  const model::MappedFile file(folder.write("x", content));
  EXPECT_EQ(std::to_integer<char>(file.bytes()[50000]), 'b');
  model::release_pages(file.bytes().data() + 1, file.bytes().size() - 2);
  EXPECT_EQ(std::to_integer<char>(file.bytes()[50000]), 'b');
  EXPECT_EQ(std::to_integer<char>(file.bytes()[99999]), 'a');
}

class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write(
        "one.safetensors",
        safetensors_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
    folder_.write(
        "two.safetensors",
        safetensors_bytes(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "5678"));
  }
  std::string open_error(const std::string& index) {
    folder_.write("model.safetensors.index.json", index);
    return input_error([&] { model::Checkpoint::open(folder_.path()); });
  }
  TempFolder folder_;
};

TEST_F(Shards, AreFoundThroughTheIndex) {
  folder_.write("model.safetensors.index.json",
                R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const model::Checkpoint checkpoint = model::Checkpoint::open(folder_.path());
  ASSERT_NE(checkpoint.find("a"), nullptr);
  ASSERT_NE(checkpoint.find("b"), nullptr);
  EXPECT_EQ(std::memcmp(checkpoint.find("b")->tensor.stored.data, "5678", 4), 0);
  EXPECT_EQ(checkpoint.find("c"), nullptr);
}

TEST_F(Shards, OfWhichOneIsMissing) {
  expect_mentions(open_error(R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors"}})"),
                  {"index.json", "three.safetensors", "missing"});
}

TEST_F(Shards, OfWhichOneLacksATensor) {
  expect_mentions(open_error(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})"),
                  {"two.safetensors", "'c'", "missing"});
}

TEST_F(Shards, WithAnIndexThatIsNone) {
  expect_mentions(open_error("{}"), {"weight_map"});
  expect_mentions(open_error("[]"), {"weight_map"});
  expect_mentions(open_error("{"), {"not valid JSON"});
  expect_mentions(open_error(R"({"weight_map":{}})"), {"empty"});
  expect_mentions(open_error(R"({"weight_map":{"a":7}})"), {"'a'"});
  expect_mentions(open_error(R"({"weight_map":{"a":"../one.safetensors"}})"), {"beside the index"});
  expect_mentions(open_error(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})"),
                  {"twice"});
}

TEST_F(Shards, WithoutAnIndex) {
  expect_mentions(input_error([&] { model::Checkpoint::open(folder_.path()); }),
                  {"2 *.safetensors files", "model.safetensors.index.json"});
}

TEST(FolderWithoutSafetensors, SaysHowToConvertOtherFormats) {
  const TempFolder torch, gguf, tensorflow, adapter, empty;
  torch.write("pytorch_model.bin", "x");
  gguf.write("model-q4.gguf", "x");
  tensorflow.write("tf_model.h5", "x");
  adapter.write("adapter_model.safetensors", "x");
  EXPECT_EQ(model::find_weights(torch.path()), torch.path() / "pytorch_model.bin");
  expect_mentions(input_error([&] { model::find_weights(gguf.path()); }), {"GGUF", "safetensors"});
  expect_mentions(input_error([&] { model::find_weights(tensorflow.path()); }),
                  {"tf_model.h5", "save_pretrained"});
  expect_mentions(input_error([&] { model::find_weights(adapter.path()); }), {"adapter", "merge"});
  expect_mentions(input_error([&] { model::find_weights(empty.path()); }),
                  {"no weights", "model.safetensors"});
}

TEST(FolderWithoutSafetensors, SaysThatALinkIsBroken) {
  const TempFolder folder;
  std::filesystem::create_symlink("../blobs/gone", folder.path() / "model.safetensors");
  expect_mentions(input_error([&] { model::find_weights(folder.path()); }),
                  {"model.safetensors", "leads nowhere", "download"});
}

}  // namespace
}  // namespace unpack
