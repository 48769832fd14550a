// SPDX-License-Identifier: Apache-2.0
#include "base/regular_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace normserve::base {
namespace {

using ::testing::HasSubstr;

std::string NewPath(const std::string& name) {
  std::string path = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(path);
  return path;
}

std::string Said(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, 100);
  return text.ok() ? "" : std::string(text.status().message());
}

TEST(RegularFileTest, ReadsWholeFilesUpToTheLimit) {
  const std::string path = NewPath("regular_file");
  std::ofstream(path) << std::string(100, 'x');
  EXPECT_EQ(*ReadRegularFile(path, 100), std::string(100, 'x'));
  EXPECT_THAT(std::string(ReadRegularFile(path, 99).status().message()),
              HasSubstr(path + ": has 100 bytes; allowed: at most 99"));
  const std::string link = NewPath("regular_link");
  std::filesystem::create_symlink(path, link);
  EXPECT_EQ(ReadRegularFile(link, 100)->size(), 100u);
  const std::string empty = NewPath("regular_empty");
  std::ofstream(empty).close();
  EXPECT_EQ(*ReadRegularFile(empty, 100), "");
}

// A FIFO without a writer would hold up the reader for ever: this test would not end.
TEST(RegularFileTest, AnythingElseIsRefusedByName) {
  const std::string fifo = NewPath("regular_fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string folder = NewPath("regular_folder");
  std::filesystem::create_directories(folder);
  const std::string socket_path = NewPath("regular_socket");
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket_path.size(), sizeof(address.sun_path));
  socket_path.copy(address.sun_path, socket_path.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  for (const std::string& path : {fifo, folder, socket_path, std::string("/dev/zero")}) {
    EXPECT_EQ(Said(path), path + ": is not a regular file");
  }
  close(fd);
  EXPECT_THAT(Said(NewPath("regular_none")), HasSubstr("regular_none: cannot be opened"));
}

}  // namespace
}  // namespace normserve::base
