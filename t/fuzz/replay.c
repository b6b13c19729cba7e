
/*
 * Stands in for libFuzzer: hands every file that is named to the driver, as a
 * TAP test each.
 */


#include "fuzz.h"


static void replay_file(const char *path);


static void
replay_file(const char *path)
{
    long      size;
    FILE     *file;
    uint8_t  *data;

    file = fopen(path, "rb");

    fuzz_check(file != NULL);
    fuzz_check(fseek(file, 0, SEEK_END) == 0);

    size = ftell(file);
    fuzz_check(size >= 0);

    rewind(file);

    /* of this size exactly, so that a byte too many is seen */

    data = malloc((size_t) size);

    fuzz_check(data != NULL || size == 0);
    fuzz_check(fread(data, 1, (size_t) size, file) == (size_t) size);

    fclose(file);

    (void) LLVMFuzzerTestOneInput(data, (size_t) size);

    free(data);
}


int
main(int argc, char **argv)
{
    int  i;

    printf("1..%d\n", argc - 1);

    for (i = 1; i < argc; i++) {
        fflush(stdout);
        replay_file(argv[i]);
        printf("ok %d - %s\n", i, argv[i]);
    }

    return 0;
}
