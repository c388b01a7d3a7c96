// A static program for the checks of limits: `probe who` prints the effective user, `probe serve PATH` answers every
// connection to a Unix socket, and `probe ask PATH` prints the answer.
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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
