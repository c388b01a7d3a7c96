// A static program for the checks of limits: `probe who` prints the effective user, `probe serve PATH` answers every
// connection to a Unix socket, `probe ask PATH` prints the answer, `probe pin PATH` makes an eBPF map and pins it, and
// `probe map PATH` prints the size of the pages of a new file.
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int pin(const char *path) {
  union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
  int made = syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map);
  if (made < 0) return perror("map"), 0;
  printf("made\n");
  union bpf_attr name = {.pathname = (uintptr_t)path, .bpf_fd = made};
  if (syscall(SYS_bpf, BPF_OBJ_PIN, &name, sizeof name)) return perror("pin"), 0;
  return puts("pinned") < 0;
}

static int map(const char *path) {
  const size_t size = 2 << 20;
  int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, size)) return perror("file"), 0;
  char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (pages == MAP_FAILED) return perror("map"), 0;
  pages[0] = 1;
  char line[512];
  int is_ours = 0;
  for (FILE *maps = fopen("/proc/self/smaps", "r"); fgets(line, sizeof line, maps);) {
    if (strstr(line, path)) is_ours = 1;
    if (is_ours && strncmp(line, "KernelPageSize:", 15) == 0) return printf("%s", line) < 0;
  }
  return puts("no page size") < 0;
}

static int serve(int socket) {
  for (;;) {
    int client = accept(socket, NULL, NULL);
    if (client < 0 || write(client, "served\n", 7) != 7) return 1;
    close(client);
  }
}

static int ask(int socket) {
  char answer[16];
  ssize_t length = read(socket, answer, sizeof answer);
  return length > 0 && write(1, answer, length) == length ? 0 : 1;
}

int main(int count, char **arguments) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  if (count == 2 && strcmp(arguments[1], "who") == 0) return printf("user %d\n", (int)geteuid()) < 0;
  if (count != 3) return 2;
  if (strcmp(arguments[1], "pin") == 0) return pin(arguments[2]);
  if (strcmp(arguments[1], "map") == 0) return map(arguments[2]);
  strncpy(at.sun_path, arguments[2], sizeof at.sun_path - 1);
  int to = socket(AF_UNIX, SOCK_STREAM, 0);
  if (strcmp(arguments[1], "serve") == 0) {
    unlink(arguments[2]);
    if (bind(to, (struct sockaddr *)&at, sizeof at) || listen(to, 8)) return perror("listen"), 1;
    return serve(to);
  }
  if (connect(to, (struct sockaddr *)&at, sizeof at)) return perror("connect"), 0;
  return ask(to);
}
