// SPDX-License-Identifier: Apache-2.0
// A temporary folder of files for one test; removed with all that is in it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace normserve::text {

class FolderUnderTest {
 public:
  FolderUnderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "tokenizer-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~FolderUnderTest() { std::filesystem::remove_all(path_); }
  FolderUnderTest(const FolderUnderTest&) = delete;
  FolderUnderTest& operator=(const FolderUnderTest&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }
  void Copy(const std::string& from, const std::string& name) const { Write(name, Read(from)); }

  static std::string Read(const std::string& path) {
    std::stringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  }

 private:
  std::string path_;
};

}  // namespace normserve::text
