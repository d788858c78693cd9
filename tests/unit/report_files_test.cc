#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "unpack/error.h"
#include "unpack/report.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;

class WriteFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("unpack-write-" + std::to_string(::getpid()) +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static std::string read(const fs::path& file) {
    std::ostringstream out;
    out << std::ifstream(file, std::ios::binary).rdbuf();
    return out.str();
  }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator{}));
  }

  fs::path folder_;
};

TEST_F(WriteFile, ReplacesTheWholeContentAndLeavesNothingElse) {
  const std::string large(3000000, 'x');
  write_file(folder_ / "a.json", large);
  write_file(folder_ / "a.json", std::string("small\0end", 9));
  EXPECT_EQ(read(folder_ / "a.json"), std::string("small\0end", 9));
  EXPECT_EQ(files(), 1u);
}

TEST_F(WriteFile, KeepsTheOldFilesPermissionsAndLinks) {
  write_file(folder_ / "a", "1");
  ::chmod((folder_ / "a").c_str(), 0600);
  fs::create_symlink(folder_ / "a", folder_ / "link");
  write_file(folder_ / "link", "2");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read(folder_ / "a"), "2");
  struct stat info {};
  ::stat((folder_ / "a").c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(WriteFile, NamesTheFileThatCannotBeWritten) {
  for (const fs::path& file : {folder_ / "missing" / "a.json", folder_}) {
    try {
      write_file(file, "x");
      FAIL() << file;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(file.string()), std::string::npos);
    }
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(WriteFile, ReportsAFullDisk) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  EXPECT_THROW(write_file("/dev/full", "x"), InputError);
}

}  // namespace
}  // namespace unpack
